"""`python -m proxy` is `accordion`."""

from proxy.cli import main

if __name__ == "__main__":
    main()
