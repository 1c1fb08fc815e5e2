"""The patch tool: hashes decide, nothing is half done, every refusal names the file and both hashes."""

import base64
import hashlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

from seatfleet.core.release import patches, unified_diff
from seatfleet.core.release.patches import PatchError

CACHE = "pkg/cache.py"
SCHED = "pkg/sched.py"
NEW = "pkg/extra.py"
# A form feed and no final newline: both have broken line-based tools before.
PRISTINE = {CACHE: "one\ntwo\x0cstill two\nthree\nfour\n", SCHED: "a\nb\nc"}
AFTER_PAD = {**PRISTINE, CACHE: "one\ntwo padded\x0cstill two\nthree\nfour\n"}
AFTER_SPLIT = {CACHE: "one\ntwo padded\x0cstill two\nthree\nfour split\n", SCHED: "a\nb split\nc\n", NEW: "new = 1\n"}


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def record_line(path, text):
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(text.encode())}\n"


def entry(name, before, after, **extra):
    touched = {path for path in after if before.get(path) != after[path]}
    diff = unified_diff.render_all({path: (before.get(path), after[path]) for path in touched})
    files = {
        path: {"before": sha(before[path]) if path in before else None, "after": sha(after[path])} for path in touched
    }
    texts = {"why": "w", "upstream": "none", "seats": "all", "tested": "here"}
    return {"name": name, "file": f"{name}.patch", "sha256": sha(diff), "files": files, **texts, **extra}, diff


PAD, PAD_DIFF = entry("pad", PRISTINE, AFTER_PAD)
SPLIT, SPLIT_DIFF = entry("split", AFTER_PAD, AFTER_SPLIT, needs=["pad"], default=False)
DIFFS = {"pad": PAD_DIFF, "split": SPLIT_DIFF}
MAPPING = {"format": 1, "distribution": "pkg", "version": "1.0", "patches": [PAD, SPLIT]}
SERIES = patches.load_series(MAPPING)


@pytest.fixture
def site(tmp_path):
    """An installed pkg 1.0, hard-linked like uv does it, with compiled code lying about."""
    site, cache = tmp_path / "site-packages", tmp_path / "installer-cache"
    info = site / "pkg-1.0.dist-info"
    (site / "pkg" / "__pycache__").mkdir(parents=True)
    info.mkdir()
    cache.mkdir()
    for path, text in PRISTINE.items():
        linked = cache / Path(path).name
        linked.write_text(text)
        (site / path).hardlink_to(linked)
    (site / "pkg/__pycache__/cache.cpython-312.pyc").write_bytes(b"stale")
    lines = [record_line(path, text) for path, text in PRISTINE.items()]
    (info / "RECORD").write_text("".join([*lines, "pkg-1.0.dist-info/RECORD,,\n"]))
    return site


def snapshot(site):
    return {str(p.relative_to(site)): p.read_bytes() for p in sorted(site.rglob("*")) if p.is_file()}


def contents(site):
    return {path: (site / path).read_text() for path in (CACHE, SCHED, NEW) if (site / path).exists()}


def record_of(site):
    return (site / "pkg-1.0.dist-info/RECORD").read_text()


def test_apply_verify_revert_round_trip(site, tmp_path):
    before = snapshot(site)
    assert {f.state for f in patches.status(site, SERIES)} == {"pristine"}
    assert patches.apply(site, SERIES, DIFFS) is True
    assert contents(site) == AFTER_SPLIT
    patches.verify(site, SERIES)
    for path, text in AFTER_SPLIT.items():
        assert record_line(path, text) in record_of(site)
    assert (site / "pkg-1.0.dist-info/RECORD.orig").read_bytes() == before["pkg-1.0.dist-info/RECORD"]
    assert not list(site.glob("pkg/__pycache__/cache.*")), "stale bytecode would hide the patch"
    assert (tmp_path / "installer-cache/cache.py").read_text() == PRISTINE[CACHE], "the installer's cache was written"
    assert patches.apply(site, SERIES, DIFFS) is False
    assert patches.revert(site, SERIES, DIFFS) is True
    del before["pkg/__pycache__/cache.cpython-312.pyc"]
    assert snapshot(site) == before
    assert patches.revert(site, SERIES, DIFFS) is False


def test_default_selection_leaves_optional_patches_out(site):
    chosen = patches.select(SERIES)
    assert [p.name for p in chosen.patches] == ["pad"]
    patches.apply(site, chosen, DIFFS)
    assert contents(site) == AFTER_PAD


def test_check_writes_nothing_and_tells_the_truth(site):
    before = snapshot(site)
    assert patches.apply(site, SERIES, DIFFS, check=True) is True
    assert snapshot(site) == before
    patches.apply(site, SERIES, DIFFS)
    patched = snapshot(site)
    assert patches.apply(site, SERIES, DIFFS, check=True) is False
    assert patches.revert(site, SERIES, DIFFS, check=True) is True
    assert snapshot(site) == patched


def test_mode_of_a_file_survives(site):
    (site / CACHE).chmod(0o640)
    patches.apply(site, SERIES, DIFFS)
    assert (site / CACHE).stat().st_mode & 0o777 == 0o640


def refused(call, *needles):
    with pytest.raises(PatchError) as caught:
        call()
    message = str(caught.value)
    for needle in needles:
        assert needle in message, message
    return message


@pytest.mark.parametrize("path", [CACHE, SCHED])
def test_one_byte_changed_in_a_target_is_refused_with_both_hashes(site, path):
    tampered = PRISTINE[path] + "#"
    (site / path).write_text(tampered)
    before = snapshot(site)
    patched = AFTER_SPLIT[path]
    for call in (lambda: patches.apply(site, SERIES, DIFFS), lambda: patches.revert(site, SERIES, DIFFS)):
        refused(call, path, sha(PRISTINE[path]), sha(patched), sha(tampered), "changed by hand")
    assert snapshot(site) == before


def test_one_byte_changed_after_the_patch_stops_verify(site):
    patches.apply(site, SERIES, DIFFS)
    (site / CACHE).write_text(AFTER_SPLIT[CACHE] + " ")
    refused(lambda: patches.verify(site, SERIES), CACHE, sha(AFTER_SPLIT[CACHE]), sha(AFTER_SPLIT[CACHE] + " "))


def test_a_later_pip_install_that_reverts_a_file_stops_verify(site):
    patches.apply(site, SERIES, DIFFS)
    (site / SCHED).write_text(PRISTINE[SCHED])
    refused(lambda: patches.verify(site, SERIES), SCHED, sha(AFTER_SPLIT[SCHED]), sha(PRISTINE[SCHED]), "installer")
    assert patches.apply(site, SERIES, DIFFS) is True
    patches.verify(site, SERIES)


def test_a_record_put_back_by_hand_stops_verify_and_is_mended_by_apply(site):
    original = record_of(site)
    patches.apply(site, SERIES, DIFFS)
    (site / "pkg-1.0.dist-info/RECORD").write_text(original)
    refused(lambda: patches.verify(site, SERIES), "RECORD", sha(AFTER_SPLIT[CACHE]), sha(PRISTINE[CACHE]))
    assert patches.apply(site, SERIES, DIFFS) is True
    patches.verify(site, SERIES)


def test_a_wheel_released_again_under_the_same_version_is_refused(site):
    rebuilt = PRISTINE[CACHE] + "# build 2\n"
    (site / CACHE).write_text(rebuilt)
    info = site / "pkg-1.0.dist-info/RECORD"
    info.write_text(info.read_text().replace(record_line(CACHE, PRISTINE[CACHE]), record_line(CACHE, rebuilt)))
    refused(lambda: patches.apply(site, SERIES, DIFFS), CACHE, sha(rebuilt), "another build of pkg-1.0")


def test_another_version_installed_is_refused(site):
    (site / "pkg-1.0.dist-info").rename(site / "pkg-2.0.dist-info")
    for call in (lambda: patches.apply(site, SERIES, DIFFS), lambda: patches.verify(site, SERIES)):
        refused(call, "pkg-1.0 installed", "pkg-2.0.dist-info")


def test_a_changed_diff_is_refused(site):
    changed = PAD_DIFF.replace("padded", "padding")
    before = snapshot(site)
    refused(lambda: patches.apply(site, SERIES, {**DIFFS, "pad": changed}), "pad.patch", sha(PAD_DIFF), sha(changed))
    assert snapshot(site) == before


def test_a_diff_that_gives_another_result_than_recorded_is_refused(site):
    changed = PAD_DIFF.replace("padded", "padding")
    series = patches.load_series({**MAPPING, "patches": [{**PAD, "sha256": sha(changed)}]})
    before = snapshot(site)
    refused(lambda: patches.apply(site, series, {"pad": changed}), CACHE, sha(AFTER_PAD[CACHE]))
    assert snapshot(site) == before


def test_a_diff_that_touches_more_than_the_series_says_is_refused(site):
    wider, diff = entry("pad", PRISTINE, {**AFTER_PAD, SCHED: "a\n"})
    del wider["files"][SCHED]
    series = patches.load_series({**MAPPING, "patches": [wider]})
    refused(lambda: patches.apply(site, series, {"pad": diff}), SCHED)
    refused(lambda: patches.apply(site, series, {}), "pad.patch", "the diff's text")


def test_a_tree_with_an_earlier_selection_is_refused_by_name(site):
    patches.apply(site, patches.select(SERIES, ["pad"]), DIFFS)
    refused(lambda: patches.apply(site, SERIES, DIFFS), sha(AFTER_PAD[CACHE]), "up to pad")


def test_a_link_out_of_the_tree_is_refused(site, tmp_path):
    outside = tmp_path / "outside.py"
    outside.write_text(PRISTINE[SCHED])
    (site / SCHED).unlink()
    (site / SCHED).symlink_to(outside)
    refused(lambda: patches.apply(site, SERIES, DIFFS), SCHED, "a link")
    assert outside.read_text() == PRISTINE[SCHED]


#: Everything of an apply that changes or syncs the tree: a kill can come before each of these calls.
WRITES = (
    (Path, "mkdir"),
    (Path, "open"),
    (os, "fsync"),
    (patches.shutil, "copymode"),
    (Path, "replace"),
    (Path, "unlink"),
)
WRITES += ((patches.shutil, "rmtree"),)


def kill_at(site, number, action, calls):
    """Run ``action`` in a child that is killed just before its ``number``-th of ``calls``; return whether it was."""
    child = os.fork()
    if child == 0:
        count = 0

        def dying(original):
            def call(*args, **kwargs):
                nonlocal count
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args, **kwargs)

            return call

        for owner, name in calls:
            setattr(owner, name, dying(getattr(owner, name)))
        action(site, SERIES, DIFFS)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def kill_at_move(site, number, action):
    return kill_at(site, number, action, [(Path, "replace")])


def test_kill_at_any_stage_of_apply_is_refused_by_verify_and_completed_by_apply(site):
    """Cleaning up, staging, syncing, moving, forgetting bytecode, cleaning up again."""
    clean = {path: data for path, data in snapshot(site).items() if "pycache" not in path}
    number = 1
    while kill_at(site, number, patches.apply, WRITES):
        for path, text in contents(site).items():
            assert text in (PRISTINE.get(path), AFTER_SPLIT[path]), "half a file"
        if record_of(site) != clean["pkg-1.0.dist-info/RECORD"].decode():
            patches.verify(site, SERIES)  # RECORD comes last: only the cleaning up was missed
        else:
            message = refused(lambda: patches.verify(site, SERIES))
            for path in (CACHE, SCHED, NEW):
                seen = contents(site).get(path)
                assert seen == AFTER_SPLIT[path] or (path in message and (seen is None or sha(seen) in message))
        patches.apply(site, SERIES, DIFFS)
        patches.verify(site, SERIES)
        assert contents(site) == AFTER_SPLIT
        patches.revert(site, SERIES, DIFFS)
        assert {path: data for path, data in snapshot(site).items() if "pycache" not in path} == clean
        number += 1
    assert number > 20, "the calls counted are not those that apply makes"


@pytest.mark.parametrize("number", range(1, 7))
def test_kill_in_the_middle_of_apply_is_refused_by_verify_and_completed_by_apply(site, number):
    clean = snapshot(site)
    died = kill_at_move(site, number, patches.apply)
    assert died == (number <= 5)  # RECORD.orig, three files, RECORD
    if died:
        assert patches.STAGING in "".join(snapshot(site))
        with pytest.raises(PatchError):
            patches.verify(site, SERIES)
        for path, text in contents(site).items():
            assert text in (PRISTINE.get(path), AFTER_SPLIT[path]), "half a file"
        assert patches.apply(site, SERIES, DIFFS) is True
    patches.verify(site, SERIES)
    assert contents(site) == AFTER_SPLIT
    assert not (site / patches.STAGING).exists()
    patches.revert(site, SERIES, DIFFS)
    del clean["pkg/__pycache__/cache.cpython-312.pyc"]
    assert {k: v for k, v in snapshot(site).items() if "pycache" not in k} == clean


@pytest.mark.parametrize("number", range(1, 4))
def test_kill_in_the_middle_of_revert_is_completed_by_revert(site, number):
    original = record_of(site)
    patches.apply(site, SERIES, DIFFS)
    assert kill_at_move(site, number, patches.revert)
    patches.revert(site, SERIES, DIFFS)
    assert contents(site) == PRISTINE
    assert record_of(site) == original
    assert not (site / "pkg-1.0.dist-info/RECORD.orig").exists()


SELECTIONS = [
    (["split"], "pad selected too"),
    (["pad", "nope"], "one of pad, split"),
]


@pytest.mark.parametrize(("names", "needle"), SELECTIONS)
def test_select_refuses(names, needle):
    refused(lambda: patches.select(SERIES, names), needle)


def test_select_refuses_conflicting_patches_and_hash_gaps():
    other, _ = entry("other", PRISTINE, {**PRISTINE, CACHE: "else\n"}, conflicts=["pad"])
    series = patches.load_series({**MAPPING, "patches": [PAD, other]})
    refused(lambda: patches.select(series, ["pad", "other"]), "pad not selected")
    assert [p.name for p in patches.select(series, ["other"]).patches] == ["other"]
    loose = {**SPLIT, "needs": []}
    series = patches.load_series({**MAPPING, "patches": [PAD, loose]})
    third, _ = entry("third", AFTER_SPLIT, {**AFTER_SPLIT, CACHE: "third\n"})
    series = patches.load_series({**MAPPING, "patches": [PAD, loose, third]})
    refused(lambda: patches.select(series, ["pad", "third"]), sha(AFTER_PAD[CACHE]), sha(AFTER_SPLIT[CACHE]))


BAD_SERIES = [
    ({"format": 2}, "format"),
    ({"version": 1.0}, "quote versions"),
    ({"surprise": 1}, "surprise"),
    ({"patches": "x"}, "a list"),
    ({"patches": [{**PAD, "sha256": "abc"}]}, "64 hex digits"),
    ({"patches": [{**PAD, "why": ""}]}, "why"),
    ({"patches": [{**PAD, "file": "../x.patch"}]}, "a file name beside series.yml"),
    ({"patches": [{**PAD, "files": {"../../etc/passwd": {"before": None, "after": sha("")}}}]}, "inside site-packages"),
    ({"patches": [{**PAD, "files": {CACHE: {"pristine": sha(""), "patched": sha("")}}}]}, "before and after"),
    ({"patches": [{**PAD, "needs": "pad"}]}, "a list of patch names"),
    ({"patches": [{**PAD, "default": "yes"}]}, "true or false"),
    ({"patches": [{**PAD, "superseded_by": 0.28}]}, "a quoted version"),
    ({"patches": [SPLIT, PAD]}, "names of earlier patches"),
    ({"patches": [PAD, {**SPLIT, "name": "pad"}]}, "used once"),
    ({"patches": [PAD, {**SPLIT, "files": PAD["files"]}]}, sha(AFTER_PAD[CACHE])),
]


@pytest.mark.parametrize(("change", "needle"), BAD_SERIES)
def test_load_series_refuses(change, needle):
    refused(
        lambda: patches.load_series({**MAPPING, **change}, "files/patches/pkg-1.0/series.yml"), needle, "series.yml"
    )


def test_load_series_reports_every_problem_at_once():
    message = refused(lambda: patches.load_series({"patches": [{}]}))
    assert int(re.match(r"(\d+) problems", message)[1]) > 8


def test_series_survives_json():
    again = patches.load_series(json.loads(json.dumps(SERIES.to_mapping())))
    assert again == SERIES
    assert again.digest() == SERIES.digest() != patches.select(SERIES).digest()


def test_what_a_host_keeps_has_only_fields_that_every_toolbox_knows():
    documented = patches.load_series({**MAPPING, "patches": [{**PAD, "changes": "c", "red_without": "r"}, SPLIT]})
    carried = documented.to_mapping(documentation=False)
    known = {"name", "file", "sha256", "files", "why", "upstream", "seats", "tested", "needs", "conflicts"}
    assert set(carried["patches"][0]) == {*known, "superseded_by", "default", "required_when"}
    assert patches.load_series(carried).digest() == SERIES.digest()
    assert documented.to_mapping()["patches"][0]["red_without"] == "r"


def test_missing_for_names_what_a_seat_cannot_do_without():
    marked = {**PAD, "required_when": {"hybrid": True, "method": ["dflash", "eagle3"]}}
    series = patches.load_series({**MAPPING, "patches": [marked, SPLIT]})
    seat = {"hybrid": True, "method": "dflash", "prefix_caching": False}
    assert [p.name for p in patches.missing_for(series, [], seat)] == ["pad"]
    assert patches.missing_for(series, ["pad"], seat) == []
    assert patches.missing_for(series, [], {**seat, "method": None}) == []
    assert patches.missing_for(series, [], {}) == []


HEADER = "--- a/pkg/cache.py\n+++ b/pkg/cache.py\n"
BAD_DIFFS = [
    ("hello\n", "no file"),
    ("@@ -1 +1 @@\n-a\n+b\n", "outside a file"),
    (HEADER, "no hunks"),
    (HEADER + "@@ -1,2 +1 @@\n-a\n+b\n", "says 2 old"),
    (HEADER + "@@ -1 +9 @@\n-a\n+b\n", "does not add up"),
    (HEADER + "@@ -1 +1 @@\n?a\n", "expected ' '"),
    ("--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "rename"),
    ("--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "delete"),
    ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n", "inside the tree"),
    ((HEADER + "@@ -1 +1 @@\n-a\n+b\n") * 2, "named twice"),
]


@pytest.mark.parametrize(("text", "needle"), BAD_DIFFS)
def test_parse_refuses(text, needle):
    with pytest.raises(unified_diff.DiffError, match=re.escape(needle)):
        unified_diff.parse(text)


ROUND_TRIPS = [
    ("a\n", "b\n"),
    ("a", "a\n"),
    ("a\n", "a"),
    ("".join(f"{i}\n" for i in range(40)), "".join(f"{i}\n" for i in range(40) if i not in (3, 30))),
    ("".join(f"{i}\n" for i in range(40)), "top\n" + "".join(f"{i}\n" for i in range(40)) + "end\n"),
    ("", "new\n"),
    ("gone\n", ""),
]


@pytest.mark.parametrize(("before", "after"), ROUND_TRIPS)
def test_render_parse_apply_agree_both_ways(before, after):
    diff = unified_diff.parse(unified_diff.render("f.py", before, after))["f.py"]
    assert unified_diff.apply("f.py", before, diff.hunks) == after
    assert unified_diff.apply("f.py", after, [hunk.reversed() for hunk in diff.hunks]) == before


def test_a_shifted_hunk_is_refused_but_located():
    hunks = unified_diff.parse(PAD_DIFF)[CACHE].hunks
    shifted = "zero\n" + PRISTINE[CACHE]
    with pytest.raises(unified_diff.DiffError, match="does not match at line 1"):
        unified_diff.apply(CACHE, shifted, hunks)
    assert unified_diff.locate(shifted, hunks[0]) == 1
    assert unified_diff.locate("other\n", hunks[0]) is None
