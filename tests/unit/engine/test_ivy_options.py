"""Downloads with Ivy, without a JVM: proxy options and error messages."""

from __future__ import annotations

from hypaware.engine import jars


def test_proxy_variables_are_passed_to_java() -> None:
    proxies = {"https": "http://proxy.example:3128", "http": "http://proxy.example:3128", "no": "localhost,.corp"}

    assert jars.proxy_options(proxies) == [
        "-Dhttp.proxyHost=proxy.example",
        "-Dhttp.proxyPort=3128",
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.corp",
    ]


def test_without_a_proxy_there_are_no_proxy_options() -> None:
    assert jars.proxy_options({}) == []


def test_a_proxy_without_a_port_gets_the_port_of_its_scheme() -> None:
    assert "-Dhttps.proxyPort=80" in jars.proxy_options({"https": "http://proxy"})


def test_the_failure_is_extracted_from_the_output_of_ivy() -> None:
    output = (
        "\t\t::::::::::::::::::::::::::::::\n\t\t::          UNRESOLVED DEPENDENCIES         ::\n"
        "\t\t:: org.xerial#sqlite-jdbc;9.9: not found\n.......... (0kB)\n"
        "\tHost repo.example not found. url=https://repo.example/sqlite.pom\n"
    )

    assert jars.ivy_failure(output) == (
        "org.xerial#sqlite-jdbc;9.9: not found; Host repo.example not found. url=https://repo.example/sqlite.pom"
    )
    assert jars.ivy_failure("....") == "Ivy gave no reason"
