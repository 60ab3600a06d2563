"""What a JobSet may say: the fields and words of ``jobset.x-k8s.io/v1alpha2`` as its published definition has them.

The jobs inside are Kubernetes' own, and ``kubernetes-validate`` knows them.
"""


def fields(required=(), **properties):
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def words(*allowed):
    return {"type": "string", "enum": list(allowed)}


STRING, WHOLE, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
STRINGS = {"type": "array", "items": STRING}
NAMES = {"type": "object", "additionalProperties": STRING}
# A label of DNS: letters, digits and '-'; the longest name of a pod adds 23 characters.
NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 40}

RULE = fields(
    ["action", "name"],
    action=words(
        "FailJobSet",
        "RestartJobSet",
        "RestartJobSetAndIgnoreMaxRestarts",
        "RestartJob",
        "RestartJobAndIgnoreMaxRestarts",
    ),
    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    onJobFailureMessagePatterns=STRINGS,
    onJobFailureReasons={
        "type": "array",
        "items": words(
            "BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"
        ),
    },
    targetReplicatedJobs=STRINGS,
)

JOBSET = fields(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=fields(["name"], name=NAME, namespace=STRING, labels=NAMES, annotations=NAMES),
    spec=fields(
        ["replicatedJobs"],
        coordinator=fields(["replicatedJob"], replicatedJob=STRING, jobIndex=WHOLE, podIndex=WHOLE),
        failurePolicy=fields(
            maxRestarts=WHOLE,
            restartStrategy=words("Recreate", "BlockingRecreate", "InPlaceRestart"),
            rules={"type": "array", "items": RULE, "maxItems": 20},
        ),
        managedBy=STRING,
        network=fields(enableDNSHostnames=FLAG, publishNotReadyAddresses=FLAG, subdomain=STRING),
        replicatedJobs={
            "type": "array",
            "minItems": 1,
            "items": fields(
                ["name", "template"],
                name=NAME,
                groupName=STRING,
                replicas=WHOLE,
                dependsOn={
                    "type": "array",
                    "items": fields(["name", "status"], name=STRING, status=words("Ready", "Complete")),
                },
                template=fields(["spec"], metadata={"type": "object"}, spec={"type": "object"}),
            ),
        },
        startupPolicy=fields(["startupPolicyOrder"], startupPolicyOrder=words("AnyOrder", "InOrder")),
        successPolicy=fields(["operator"], operator=words("All", "Any"), targetReplicatedJobs=STRINGS),
        suspend=FLAG,
        ttlSecondsAfterFinished=WHOLE,
    ),
)
