"""``python -m partita.profiling --channel FD``: measures beside traffic; started by the head, not by hand."""

import sys

from partita.system.parent import die_with_thread

if __name__ == "__main__":
    die_with_thread()  # from here on the head may stop it, so it comes before all that takes long to import
    from partita.profiling.beside import main

    sys.exit(main())
