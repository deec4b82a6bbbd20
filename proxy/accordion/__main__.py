"""`python -m accordion` is `accordion`."""

from accordion.cli.main import main

if __name__ == "__main__":
    main()
