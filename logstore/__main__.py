"""`python -m logstore`: the command `logstore` of this interpreter."""

from logstore.cli.main import main

if __name__ == "__main__":
    main()
