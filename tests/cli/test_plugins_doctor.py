from __future__ import annotations

import json


def test_doctor_names_everything_that_is_wrong_each_with_a_remedy(miles):
    done = miles("plugins", "doctor", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["ok"] is False
    summary, *rows = report["findings"]
    assert summary["found"].endswith("plugins of 2 distributions, 2 do not load")
    found = " ".join(row["found"] for row in rows)
    assert "'exact_match' is offered more than once" in found
    assert "reward model 'acme_broken' (acme_kit_broken:score, distribution acme-kit 1.5) cannot be loaded" in found
    assert "plugin module 'acme_hooks'" in found
    assert all(row["remedy"] for row in rows)


def test_doctor_as_a_table_and_without_imports(miles):
    done = miles("plugins", "doctor", "--no-import")
    assert done.returncode == 1
    assert (
        "-> Write one of: acme-kit/exact_match, miles-hub/exact_match; or name one in [plugins] prefer." in done.stdout
    )
    assert "does_not_exist_xyz" not in done.stdout
    assert done.stdout.endswith("\n1 problem\n")


def test_doctor_is_content_where_nothing_is_wrong(miles):
    done = miles("plugins", "doctor", "--no-import", "--no-plugins")
    assert (done.returncode, done.stderr) == (0, "")
    assert "missing  acme-kit  6 left out: off, because only miles-hub takes part" in done.stdout
    assert done.stdout.endswith("\nnothing is wrong\n")


def test_doctor_itself_works_under_strictness(miles):
    assert "1 problem" in miles("--strict-plugins", "plugins", "doctor", "--no-import").stdout


def test_a_time_out_must_be_positive(miles):
    done = miles("plugins", "doctor", "--timeout", "-1")
    assert done.returncode == 1
    assert "--timeout" in done.stderr
