"""Send tokens to the devices of their experts along the ``expert`` axis of a mesh, and return the outputs.

A method is built from a device's routing and its ``Shard``. All code here runs on one device, inside ``shard_map``. No
method drops tokens, so none changes a result.
"""

from moejax.routing.communication.all_gather import AllGather
from moejax.routing.communication.all_to_all import AllToAll
from moejax.routing.communication.ragged_all_to_all import RaggedAllToAll
from moejax.routing.communication.shard import Communication, Shard

__all__ = ["COMMUNICATION", "AllGather", "Communication", "Shard"]

COMMUNICATION: dict[str, type[Communication]] = {
    "all_gather": AllGather,
    "all_to_all": AllToAll,
    "ragged_all_to_all": RaggedAllToAll,
}
"""Communication methods by ``Runtime.expert_communication``."""
