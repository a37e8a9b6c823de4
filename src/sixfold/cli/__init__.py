"""The `sixfold` command: a person's way in.

Runs in: the process that the user started (`serve` becomes the supervisor). Owns: nothing that outlives the command.
May import: everything; nothing imports it. Start reading at: main.py, then settings.py.

Modules here import only `click`, `config` and `errors` at the top. What a command needs besides (NumPy, the model) is
imported when the command runs, so that `sixfold --help` answers at once.
"""
