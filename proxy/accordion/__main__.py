"""`python -m accordion` is `accordion`."""

from accordion.cli import main

if __name__ == "__main__":
    main()
