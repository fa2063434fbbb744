"""``python -m overnight`` is the ``overnight`` command."""

from overnight.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
