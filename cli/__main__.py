"""Runs `muster` as `python -m cli`."""

from cli.completion.lookup import answer

if not answer():
    from cli.main import main

    main()
