"""Who a flow is: its canonical form and its signature.

Models, prompts, handler code, parameters and durable options do not count; `version=` on an agent or op is how an author
says that its meaning has changed. How two of them differ is told by `bb.identity.diff`, and what of one has its place in the other
by `bb.identity.match`; both are loaded when a flow has changed.
"""

from bb.identity.form import Tree, canonical, parts_of, signature, signature_of, tree, value_form
from bb.identity.keys import body_key, call_key

__all__ = [
    "Tree",
    "body_key",
    "call_key",
    "canonical",
    "parts_of",
    "signature",
    "signature_of",
    "tree",
    "value_form",
]
