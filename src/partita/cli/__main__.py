"""``python -m partita.cli`` is the command ``partita``."""

from partita.cli import main

if __name__ == "__main__":
    main()
