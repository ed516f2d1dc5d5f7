"""Security of a broker and of a client: listeners, TLS, logins.

Identity is decided at the connection: a certificate or a login names the principal. The engine knows nothing
of it.

    config       settings, under Kafka's names, and JAAS lines
    tls          contexts from PEM and PKCS#12, checked at the start
    tls_stream   TLS between a socket's transport and a protocol
    principals   distinguished names and their mapping rules
    certificates a certificate authority for development
"""
