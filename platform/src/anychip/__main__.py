"""Make `python -m anychip` the same as the `platform` command. Knows no verb."""

from anychip.cli.main import run

if __name__ == "__main__":
    run()
