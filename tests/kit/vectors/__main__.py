"""Writes `protocol/vectors.json`."""

from tests.kit.vectors import PATH, generate, written

if __name__ == "__main__":
    PATH.write_text(written(generate()), encoding="utf-8")
