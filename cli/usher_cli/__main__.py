"""`python -m usher_cli` is `usher`: `usher up` starts its children this way."""

from usher_cli.main import main

if __name__ == "__main__":
    main()
