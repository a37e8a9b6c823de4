"""May this call come in, and if not, when should it come again: places, predicted wait, what each key may use.

Runs in: API process. Owns: this process's places, and what the keys have used, which all API processes share.
May import: what `api` may. Start reading at: admission.py, then allowance.py.
"""
