"""`python -m sixfold` is the `sixfold` command."""

from sixfold.cli.main import main

if __name__ == "__main__":
    main()
