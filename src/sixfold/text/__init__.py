"""Text and token ids: the tokenizer and the chat template. The only package that knows the tokenizer library.

Runs in: the API process, and whatever process `LLM` runs in.
Owns: nothing that changes after it was built; any thread may use it.
May import: model_file, sampling_params, errors.
Start reading at: tokenizer.py, then chat_template.py; model_text.py is the door.
"""

from sixfold.text.byte_tokenizer import byte_tokenizer
from sixfold.text.chat_template import CHATML, RESERVED_NAMES, ROLES, ChatTemplate, folder_template
from sixfold.text.folder_vocabulary import folder_tokenizer
from sixfold.text.generation import sampling_defaults
from sixfold.text.gguf_vocabulary import gguf_tokenizer
from sixfold.text.model_text import TextFiles, load_text_files
from sixfold.text.tokenizer import Tokenizer

__all__ = [
    "CHATML",
    "RESERVED_NAMES",
    "ROLES",
    "ChatTemplate",
    "TextFiles",
    "Tokenizer",
    "byte_tokenizer",
    "folder_template",
    "folder_tokenizer",
    "gguf_tokenizer",
    "load_text_files",
    "sampling_defaults",
]
