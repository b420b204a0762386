"""The attacks, and the menu that a study file names them by."""

from leakline.attacks.attribute_inference import AttributeInference
from leakline.attacks.audit import Audit, InRunAudit, LdpDistinguish
from leakline.attacks.base import Artefact, Attack, Challenge, Effort, Lab
from leakline.attacks.client_inference import ClientInference
from leakline.attacks.imprint import Imprint
from leakline.attacks.inversion import GradientInversion
from leakline.attacks.label_inference import LabelInference
from leakline.attacks.membership import LossThreshold
from leakline.attacks.record_membership import RecordMembership
from leakline.attacks.user_membership import UserMembership

__all__ = [
    "MENU",
    "Artefact",
    "Attack",
    "AttributeInference",
    "Audit",
    "Challenge",
    "ClientInference",
    "Effort",
    "GradientInversion",
    "Imprint",
    "InRunAudit",
    "Lab",
    "LabelInference",
    "LdpDistinguish",
    "LossThreshold",
    "RecordMembership",
    "UserMembership",
]

MENU: dict[str, type[Attack]] = {
    "loss-threshold": LossThreshold,
    "client-inference": ClientInference,
    "membership-inference": RecordMembership,
    "user-membership": UserMembership,
    "attribute-inference": AttributeInference,
    "label-inference": LabelInference,
    "gradient-inversion": GradientInversion,
    "imprint": Imprint,
    "audit": Audit,
    "in-run-audit": InRunAudit,
    "ldp-distinguish": LdpDistinguish,
}
