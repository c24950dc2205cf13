"""Everything about a flow that can be refused before it runs.

A rule stands beside its code in a table of the file that fits it, `SITES` for statements and `SPOTS` for the values in them:
`placement` (what may stand where), `names` (symbols and what they hold), `operations` (calls and model stages), `shapes`
(bounds and labels), `agents`, `runs`.
"""

from bb.check.problem import Problem, refuse
from bb.check.sites import agents_of
from bb.check.spots import ops_of
from bb.check.static import NESTING, check

__all__ = ["NESTING", "Problem", "agents_of", "check", "ops_of", "refuse"]
