"""Who a flow is: its canonical form, its signature, and in words how two of them differ.

Models, prompts, handler code, parameters and durable options do not count; `version=` on an agent or op is how an author
says that its meaning has changed.
"""

from bb.identity.diff import changes, diff, structural_diff
from bb.identity.form import Tree, canonical, parts_of, signature, signature_of, tree, value_form
from bb.identity.keys import body_key, call_key
from bb.identity.match import Match, ids_on, match_paths

__all__ = [
    "Match",
    "Tree",
    "body_key",
    "call_key",
    "canonical",
    "changes",
    "diff",
    "ids_on",
    "match_paths",
    "parts_of",
    "signature",
    "signature_of",
    "structural_diff",
    "tree",
    "value_form",
]
