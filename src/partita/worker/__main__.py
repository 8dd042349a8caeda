"""``python -m partita.worker --channel FD``: started by the head, not by hand."""

import sys

from partita.worker.entry import main

if __name__ == "__main__":
    sys.exit(main())
