"""What a privacy officer signs for a run, and how anybody can check it later.

    RUN/signed/PARTY/statement.json    what is signed: readable, and canonical to the byte
    RUN/signed/PARTY/statement.sig     the Ed25519 signature of these bytes, and by which key
    RUN/signed/PARTY/certificate.pem   the site's certificate that vouches for the key; none for an unbound key

The contract:

    A statement says which run it is about, and covers its files by SHA-256: the model of
    every party that is here, every ledger, and the run's records with the report.
    It names the columns of the party that signs and of nobody else.
    Nothing is signed that is still being trained, or that was not audited as it is.
    Whoever has statement, signature and certificate can check them without a network.
    With the run's folder, too, every file is hashed again. Only the folder says which
    files there are: no path in a statement is ever opened.

    contents    what is said of a run, for a statement and for the report's first box
    inventory   the files that are covered, and their digests
    statement   what one party signs, as canonical JSON
    keys        Ed25519 keys, bound to a site's certificate or not
    signature   to sign, and to verify
"""
