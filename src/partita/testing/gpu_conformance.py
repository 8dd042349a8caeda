"""What every GPU driver must do: derive a class from `GpuConformance`, give it `make`, let pytest run it.

Models on it are held to `RuntimeConformance`, with ``LoadRequest(..., gpu=self.make())``.
"""

import threading

import numpy as np
import pytest

from partita.worker.gpus.interface import GpuDevice
from partita.worker.gpus.staging import Staging

_SIZE = 1 << 20


class GpuConformance:
    """Tests of one opened GPU."""

    def make(self) -> GpuDevice:
        """Return the GPU."""
        raise NotImplementedError

    def test_its_memory_is_told(self) -> None:
        """Free is within all of it."""
        free, total = self.make().memory()
        assert 0 <= free <= total
        assert total > _SIZE

    def test_what_is_stored_comes_back_and_counts(self) -> None:
        """Bytes are the same, less is free meanwhile, and as much as before afterwards."""
        gpu = self.make()
        data = np.random.default_rng(0).integers(0, 256, 32 * _SIZE, np.uint8)
        before = gpu.memory().free
        stored = gpu.store(data.data)
        assert gpu.memory().free <= before - data.nbytes // 2
        back = np.zeros_like(data)
        stored.fetch(back.data)
        np.testing.assert_array_equal(back, data)
        stored.release()
        stored.release()
        assert gpu.memory().free > before - data.nbytes // 2

    def test_more_than_there_is_raises_and_takes_nothing(self) -> None:
        """`MemoryError`, and the GPU is as usable as before."""
        gpu = self.make()
        free = gpu.memory().free
        with pytest.raises(MemoryError):
            gpu.charge(2 * gpu.memory().total)
        assert gpu.memory().free >= free - _SIZE
        stored = gpu.store(np.ones(8, np.uint8).data)
        stored.release()

    def test_page_locked_memory_is_memory(self) -> None:
        """Writable, kept, known as what it is until it is given back; other memory is not."""
        gpu = self.make()
        locked = gpu.page_locked(_SIZE)
        assert locked.view.nbytes >= _SIZE
        assert gpu.is_page_locked(locked.view)
        assert not gpu.is_page_locked(np.zeros(_SIZE, np.uint8).data)
        array = np.frombuffer(locked.view, np.uint8, _SIZE)
        array[:] = np.arange(_SIZE, dtype=np.uint64).astype(np.uint8)
        stored = gpu.store(locked.view[:_SIZE])
        back = np.zeros(_SIZE, np.uint8)
        stored.fetch(back.data)
        np.testing.assert_array_equal(back, array)
        stored.release()
        del array
        locked.release()
        locked.release()

    def test_inputs_are_staged_in_page_locked_memory(self) -> None:
        """A larger batch gets more of it; texts stay as they are."""
        gpu = self.make()
        staging = Staging(gpu)
        for rows in (2, 3000, 5):
            x = np.random.default_rng(rows).standard_normal((rows, 16)).astype(np.float32)
            x.flags.writeable = False
            staged = staging.place("x", x)
            np.testing.assert_array_equal(staged, x)
            assert gpu.is_page_locked(staged.data.cast("B"))
        texts = np.array([b"a", b"b"], object)
        assert staging.place("t", texts) is texts
        staging.close()

    def test_threads_may_use_it_together(self) -> None:
        """Each gets its own bytes back."""
        gpu = self.make()
        wrong: list[int] = []

        def work(number: int) -> None:
            data = np.full(_SIZE, number, np.uint8)
            for _ in range(5):
                stored = gpu.store(data.data)
                back = np.zeros_like(data)
                stored.fetch(back.data)
                stored.release()
                if (back != number).any():
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
