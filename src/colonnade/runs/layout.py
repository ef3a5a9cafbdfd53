"""What lies where in a run directory, and beside it in an organisation's folder of
runs. Each name stands here once.

    federation.toml              the settings, every default written out
    run.json                     its id, when it began, and by which version
    metrics.jsonl                one line per epoch
    summary.json                 final metrics, rounds, seconds, bytes per party and direction
    checkpoint.json              which checkpoint is the last that all parties here saved
    .lock                        held by the process that trains here; empty
    widths.json                  between sites, at a label owner: what each party sends for a row, in their order
    serve.json                   between sites, while a label owner predicts over HTTP: where
    rows/ predictions/           between sites, at a label owner: ids to predict, and what came of them
    alignment.json               between sites, at a label owner: how many rows are common, where it only counted
    selection.json               between sites, at a label owner: whose columns are worth having
    explain/                     explain.json, tsne.json and pictures: which parties matter
    audit/                       audit.json and pictures: what could be learned; between sites, of one's own
    signed/<name>/               statement.json, statement.sig, certificate.pem: what it signed (`colonnade sign`)
    parties/<name>/              columns.json  ledger.jsonl  ledger-after.jsonl  store/  store.anchor/
                                 quality.json (at a label owner: how well the model ranks and decides)
                                 checkpoint-<number>/  coefficients.json of a linear model
                                 importance.json (its own columns), trees.json (of trees, at a label owner)
                                 between sites, at a label owner: held_out.json (ids of its test and validation rows),
                                 started/ (its heads before training)

What crossed in training is in ledger.jsonl; what crosses later, to predict or to
explain, in ledger-after.jsonl.

On one machine this is one folder; each `parties/<name>` belongs to that organisation
alone. Between sites each has such a folder with its own part, and beside its runs:

    store/                       what all its runs spent together (`colonnade.store`); its anchor is beside the runs
    refused.jsonl                calls that it did not answer
    failed.json                  why the last run ended, or could not begin
    draining                     there while it takes no new runs (`colonnade site drain`)
    signing-keys/                the keys by which statements are signed (`colonnade sign --make-key`)
    site.log                     what happened, in lines of JSON without data; site.log.1 to .4 are older
"""

MARK = "checkpoint.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
SETTINGS = "federation.toml"
IDENTITY = "run.json"
WIDTHS = "widths.json"
ANSWERS = "serve.json"
LOCK = ".lock"
ROWS = "rows"
PREDICTIONS = "predictions"
PARTIES = "parties"
COLUMNS = "columns.json"
LEDGER = "ledger.jsonl"
AFTER = "ledger-after.jsonl"
STORE = "store"
COEFFICIENTS = "coefficients.json"
IMPORTANCE = "importance.json"
TREES = "trees.json"
REFUSED = "refused.jsonl"
FAILURE = "failed.json"
DRAINING = "draining"
SITE_LOG = "site.log"
EXPLANATION = "explain"
AUDIT = "audit"
SIGNED = "signed"
SIGNING_KEYS = "signing-keys"
HELD_OUT = "held_out.json"
STARTED = "started"
ALIGNMENT = "alignment.json"
SELECTION = "selection.json"
QUALITY = "quality.json"
"""Of a label owner: curves, counts and costs on held-out rows."""
