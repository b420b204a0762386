"""One audit game for every defence: what a promise is worth, measured (paper 002 and beyond)."""

from leakline.attacks.audit.api import ADVERSARIES, Audited, audit, card_with
from leakline.attacks.audit.bounds import Finding, composed_rates, judge, strongest
from leakline.attacks.audit.channel import Fixed, PublishChannel, ReleaseChannel
from leakline.attacks.audit.crafters import SIX, Pair, Scene, canary, craft
from leakline.attacks.audit.game import Audit
from leakline.attacks.audit.in_run import InRunAudit
from leakline.attacks.audit.ldp import LdpDistinguish
from leakline.attacks.audit.one_run import one_run
from leakline.attacks.audit.questions import Question
from leakline.attacks.audit.wide import Remark, look
from leakline.attacks.audit.workbench import small, workbench

__all__ = [
    "ADVERSARIES",
    "SIX",
    "Audit",
    "Audited",
    "Finding",
    "Fixed",
    "InRunAudit",
    "LdpDistinguish",
    "Pair",
    "PublishChannel",
    "Question",
    "ReleaseChannel",
    "Remark",
    "Scene",
    "audit",
    "canary",
    "card_with",
    "composed_rates",
    "craft",
    "judge",
    "look",
    "one_run",
    "small",
    "strongest",
    "workbench",
]
