"""Run the program with ``python -m msgstore``, also where its script is not on the path."""

from msgstore.cli.main import main

if __name__ == "__main__":
    main(prog_name="msgstore")
