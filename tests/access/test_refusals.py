# SPDX-License-Identifier: Apache-2.0
"""What is said of a client that a broker refuses."""

from weir.access.refusals import authentication_refused


def test_sentence_names_user_and_mechanism_and_no_password() -> None:
    options = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "weir", "sasl_plain_password": "secret"}
    assert (
        authentication_refused(options, "Authentication failed.")
        == "the broker refuses to authenticate User:weir by PLAIN: Authentication failed"
    )
    assert (
        authentication_refused({"sasl_mechanism": "GSSAPI"}, "")
        == "the broker refuses to authenticate the principal of the Kerberos ticket by GSSAPI"
    )
