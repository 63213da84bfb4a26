"""``python -m unmask``."""

from unmask.cli import main

if __name__ == "__main__":
    main()
