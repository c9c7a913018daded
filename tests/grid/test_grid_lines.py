"""Lines of a grid: from the file of the seed, CSV, JSON lines and a matrix; and what is said of wrong ones."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from grids import JOB, grid_of, problems_of

from headrace.errors import JobInvalid, UsageError
from headrace.grid.batch.grid_bundle import array_file
from headrace.grid.line import equal_lines
from headrace.grid.plan_grid import check_budget, plan_grid
from headrace.instance.entry_command import decode, hyperparameter_arguments

SEED = """us-east-1,s3://ragab-ml/imagenet2012/tf-imagenet/resized
us-west-2,s3://ragab-ml-pdx/imagenet2012/tf-imagenet/resized
eu-west-1,s3://ragab-ml-dub/imagenet2012/tf-imagenet/resized
eu-central-1,s3://ragab-ml-fra/imagenet2012/tf-imagenet/resized"""


@pytest.mark.parametrize("end", ["", "\n", "\r\n\r\n"])
def test_the_seeds_file_is_read_unchanged_whatever_its_last_line_ends_with(tmp_path: Path, end: str) -> None:
    (tmp_path / "sage_array.txt").write_bytes((SEED + end).encode())
    grid = grid_of(tmp_path, "{file: sage_array.txt}")
    assert [line.fields["region"] for line in grid.lines] == ["us-east-1", "us-west-2", "eu-west-1", "eu-central-1"]
    last = grid.lines[3]
    assert (last.index, last.place) == (3, f"{tmp_path}/sage_array.txt:4")
    job = grid.template.job_of(last, "big-3")
    assert job.inputs["train"].s3_data == "s3://ragab-ml-fra/imagenet2012/tf-imagenet/resized"
    assert job.job_name == "big-3"


def test_a_file_with_a_header_sets_fields_of_any_depth_and_values_have_the_types_of_a_job_file(tmp_path: Path) -> None:
    header = "region,hyperparameters.lr,hyperparameters.fast,instance_groups.data_group.count,image,entry_point"
    (tmp_path / "a.csv").write_text(f'{header}\nus-east-1,1e-3,true,4,repo:1,\nus-west-2,"0.5",,2,,"code, two.py"\n')
    first, second = (grid := grid_of(tmp_path, "{file: a.csv}")).lines
    job = grid.template.job_of(first, "one")
    assert job.hyperparameters == {"epochs": 1, "lr": "1e-3", "fast": True}
    assert [group.instance_count for group in job.instance_groups] == [4, 1]
    assert job.image_uri == "repo:1"
    assert second.fields["entry_point"] == "code, two.py"
    assert "image" not in second.fields  # an empty cell says nothing


SAME = (
    "1e-4 1.10 12e45 1E5 -0 007 0123456 0x1F 0o17 1_000 +5 .5 5. 1e999 NaN Infinity .inf True yes on 12:30 2026-11-27 "
    "| > *x !tag 'q' null ~ --- {name} [0-9] %d @a `a` << \\ a\u2028b"
)
"""Cells that are text as they stand: numbers that Python writes otherwise, or JSON does not have, and marks of YAML."""
CELLS = {
    **{cell: cell for cell in SAME.split(" ")},
    **{cell: cell for cell in ("&x y", "a #1", "# a", "a: b", "- a")},
    **{"3": 3, "-7": -7, "0.5": 0.5, "0": 0, "0.0001": 0.0001, "1e-05": 1e-05, f"{10**30}": 10**30, '"3"': 3},
    **{"true": True, "false": False, '"[1, ""a""]"': [1, "a"], '"{""a"": 0.1}"': {"a": 0.1}},
    # spaces stay where they are quoted, and go where they are not
    **{'" "': " ", '"\t"': "\t", '"  two spaces  "': "  two spaces  ", '"a\nb"': "a\nb", "  x  ": "x", '"007"': "007"},
    **{'"say ""a, b"""': 'say "a, b"', '""': None, "": None},
}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_cell_reaches_the_program_as_it_was_written_whatever_yaml_would_make_of_it(
    tmp_path: Path, delimiter: str
) -> None:
    cells = {cell: value for cell, value in CELLS.items() if delimiter not in cell or cell[:1] == '"'}
    rows = [f"{number}{delimiter}{cell}{delimiter}{cell}" for number, cell in enumerate(cells)]
    header = delimiter.join(["hyperparameters.n", "hyperparameters.x", "environment.X"])
    (tmp_path / "a.csv").write_text("\n".join([header, *rows]) + "\n")
    grid = grid_of(tmp_path, "{file: a.csv}")
    lines = {line.fields["hyperparameters.n"]: line for line in grid.lines}
    assert len(lines) == len(cells)
    for number, (cell, value) in enumerate(cells.items()):
        line = lines[number]
        told = line.fields.get("hyperparameters.x")
        assert (type(told), told) == (type(value), value), cell
        job = grid.template.job_of(line, "one")
        if value is None:
            assert "X" not in job.environment
            continue
        text = next(csv.reader(io.StringIO(cell), skipinitialspace=True), [""])[0] if cell[:1] == '"' else cell.strip()
        assert job.environment["X"] == text, cell
        if not isinstance(value, (list, dict)):
            argument = hyperparameter_arguments(decode(job.hyperparameter_texts_of(job.groups[0].instance_group_name)))
            given = argument[argument.index("-x") + 1]
            assert given == (str(value) if isinstance(value, bool) else text), cell


def test_numbers_of_other_fields_are_numbers_however_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("stopping_condition.max_run,hyperparameters.a\n3600,1\n")
    (line,) = grid_of(tmp_path, "{file: a.csv}").lines
    assert line.fields["stopping_condition.max_run"] == 3600
    (tmp_path / "a.csv").write_text("completion.stall_after,hyperparameters.a\n1.50,1\n")
    (line,) = grid_of(tmp_path, "{file: a.csv}").lines
    assert line.fields["completion.stall_after"] == 1.5


def test_a_header_decides_what_divides_the_cells_and_cells_may_hold_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("hyperparameters.a,hyperparameters.b\n1;2,3|4\n")
    (line,) = grid_of(tmp_path, "{file: a.csv}").lines
    assert line.fields == {"hyperparameters.a": "1;2", "hyperparameters.b": "3|4"}
    (tmp_path / "a.csv").write_text("hyperparameters.a\n1;2\n")
    (line,) = grid_of(tmp_path, "{file: a.csv}").lines
    assert line.fields == {"hyperparameters.a": "1;2"}
    (tmp_path / "a.txt").write_text(SEED.replace(",", ";"))
    assert [line.fields["region"] for line in grid_of(tmp_path, "{file: a.txt}").lines][:1] == ["us-east-1"]


def test_json_lines_may_hold_every_character_that_ends_a_line_elsewhere(tmp_path: Path) -> None:
    notes = [f"a{mark}b" for mark in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"]
    text = "\r\n".join(json.dumps({"hyperparameters.note": note}, ensure_ascii=False) for note in notes[:3])
    more = "\n".join(json.dumps({"hyperparameters.note": note}) for note in notes[3:])
    (tmp_path / "a.jsonl").write_bytes(f"{text}\n{more}\n".encode())
    assert [line.fields["hyperparameters.note"] for line in grid_of(tmp_path, "{file: a.jsonl}").lines] == notes
    name, content = array_file(grid_of(tmp_path, "{file: a.jsonl}").lines, ["eu-west-1"] * len(notes))
    (tmp_path / name).write_bytes(content)
    again = grid_of(tmp_path, f"{{file: {name}}}").lines
    assert [line.fields["hyperparameters.note"] for line in again] == notes


def test_a_misspelt_region_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("us-eats-1,s3://b/1\n")
    with pytest.raises(JobInvalid, match="did you mean 'us-east-1'"):
        grid_of(tmp_path, "{file: a.txt}")
    with pytest.raises(JobInvalid, match="did you mean 'eu-west-3'"):
        grid_of(tmp_path, "{product: {region: [us-east-1, eu-wst-3]}}")


def test_a_budget_needs_the_price_of_every_instance(tmp_path: Path) -> None:
    def check(job: str, more: str) -> None:
        check_budget(grid := grid_of(tmp_path, "{product: {hyperparameters.a: [1]}}", job, more), plan_grid(grid))

    unpriced = JOB.replace("ml.g5.xlarge", "ml.p6-b300.48xlarge")
    check(JOB, "budget: {usd: 5}")
    check(unpriced, "")
    with pytest.raises(JobInvalid, match=r"budget: needs the price of every instance; none of ml\.p6-b300\.48xlarge"):
        check(unpriced, "budget: {usd: 5}")


def test_columns_name_the_fields_of_a_file_without_header_and_those_of_other_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0.1,s3://b/x\n")
    (line,) = grid_of(tmp_path, "{file: a.csv, columns: [hyperparameters.lr, inputs.train.path]}").lines
    assert dict(line.fields) == {"hyperparameters.lr": 0.1, "inputs.train.path": "s3://b/x"}
    (tmp_path / "b.csv").write_text("lr,data\n0.1,s3://b/x\n")
    named = "{file: b.csv, columns: {lr: hyperparameters.lr, data: inputs.train.path}}"
    assert grid_of(tmp_path, named).lines[0].fields == line.fields
    (tmp_path / "c.jsonl").write_text('{"lr": 0.1, "data": "s3://b/x"}\n\n')
    assert grid_of(tmp_path, named.replace("b.csv", "c.jsonl")).lines[0].key == line.key


@pytest.mark.promise("grid", "whatever is wrong in a grid's lines is told at once, line by line")
def test_every_wrong_line_is_named_by_file_and_number_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        "us-east-1,s3://b/1\n,s3://b/2\nus-east-1\nUS,s3://b/4\n , \neu-west-1,s3://b/6,x\n"
    )
    assert problems_of(tmp_path, "{file: a.txt}") == [
        "a.txt:2: region: must be a region",
        "a.txt:3: line: must have 2 cells: region, inputs.train.path (got 1 cell)",
        "a.txt:4: region: must be a region (got 'US')",
        "a.txt:5: line: has empty cells only",
        "a.txt:6: line: must have 2 cells: region, inputs.train.path (got 3 cells)",
    ]
    (tmp_path / "a.csv").write_text("hyperparameters.lr,instance_groups.data_group.count\n0.1,1\n0.2,many\n0.3,0\n")
    assert problems_of(tmp_path, "{file: a.csv}") == [
        "a.csv:3: instance_groups[0].instance_count: must be a whole number (got 'many')",
        "a.csv:4: instance_groups[0].instance_count: must be at least 1 (got 0)",
    ]
    (tmp_path / "a.jsonl").write_text('{"region": "eu-west-1"}\n[1]\n{"region": \n{"hyperparameter.x": 1}\n{}\n')
    found = problems_of(tmp_path, "{file: a.jsonl}")
    assert [text.split(": ")[:2] for text in found] == [
        ["a.jsonl:2", "line"],
        ["a.jsonl:3", "line"],
        ["a.jsonl:4", "hyperparameter.x"],
        ["a.jsonl:5", "line"],
    ]


def test_half_characters_and_endless_nesting_are_refused(tmp_path: Path) -> None:
    deep = "[" * 200_000
    (tmp_path / "a.jsonl").write_text(
        '{"region": "eu-west-1", "hyperparameters.a": "\\ud800"}\n{"region": ' + deep + "\n"
    )
    found = problems_of(tmp_path, "{file: a.jsonl}")
    assert [text.split(": ")[:2] for text in found] == [["a.jsonl:1", "hyperparameters.a"], ["a.jsonl:2", "line"]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "a.txt: file: has no lines"),
        (b"region,hyperparameters.lr\n", "a.txt: file: has no lines"),
        (b"region,lr\nus-east-1,1\n", "a.txt:1: lr: is no field of a job"),
        (b"region,region\nus-east-1,us-east-1\n", "a.txt:1: region: comes twice"),
        (b'us-east-1,s3://b/"x\nus-east-1,"s3://b/y\n', "a.txt:2: line: is no CSV: unexpected end of data"),
        (b"us-east-1,s3://b/1\nus-east-1,s3://b/\xff\n", "a.txt:2: file: must be UTF-8 text"),
        (b"instance_groups.gpu.count\n3\n", "a.txt:2: instance_groups.gpu.count: there is no group 'gpu'; there are"),
    ],
)
def test_a_file_that_is_none_of_these_is_refused(tmp_path: Path, text: bytes, problem: str) -> None:
    (tmp_path / "a.txt").write_bytes(text)
    found = problems_of(tmp_path, "{file: a.txt}")
    assert found
    assert found[0].startswith(problem)


def test_a_file_without_header_needs_columns_when_the_job_has_two_channels(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SEED)
    two = JOB.replace("{train: s3://bucket/all}", "{train: s3://bucket/all, more: s3://bucket/more}")
    assert "but the job has 2: train, more" in problems_of(tmp_path, "{file: a.txt}", two)[0]
    none = JOB.replace("inputs: {train: s3://bucket/all}\n", "")
    assert "but the job has none" in problems_of(tmp_path, "{file: a.txt}", none)[0]
    grid_of(tmp_path, "{file: a.txt, columns: [region, inputs.more.path]}", two)


def test_a_first_line_that_begins_with_a_region_is_no_header_wherever_its_data_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\ufeffus-east-1,data/a\r\nus-west-2,data/b\r\n\r\n", encoding="utf-8")
    lines = grid_of(tmp_path, "{file: a.txt}").lines
    assert [line.fields["inputs.train.path"] for line in lines] == ["data/a", "data/b"]


def test_what_a_field_may_be_called_is_told_in_a_few_words_and_endless_problems_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("lr\n1\n")
    with pytest.raises(JobInvalid) as wrong:
        grid_of(tmp_path, "{file: a.csv}")
    assert wrong.value.problems[0].hint == (
        "is it a hyperparameter? Name it hyperparameters.lr, or say what the column stands for: "
        "columns: {lr: hyperparameters.lr}"
    )
    (tmp_path / "b.txt").write_text("US,s3://b/1\n" * 1000)
    (tmp_path / "c.csv").write_text("instance_groups.data_group.count\n" + "x\n" * 1000)
    for lines in ("{file: b.txt}", "{file: c.csv}"):
        found = problems_of(tmp_path, lines)
        assert (len(found), found[-1]) == (201, "lines: and 800 problems more")


@pytest.mark.promise("grid-reference", "the name of a line's job stays when lines are added, moved or taken away")
def test_keys_last_when_lines_move_and_equal_lines_have_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("us-east-1,s3://b/1\nus-west-2,s3://b/2\n")
    before = grid_of(tmp_path, "{file: a.txt}")
    (tmp_path / "a.txt").write_text("eu-west-1,s3://b/0\nus-west-2,s3://b/2\nus-east-1,s3://b/1\nus-east-1,s3://b/1\n")
    after = grid_of(tmp_path, "{file: a.txt}")
    assert [after.lines[2].key, after.lines[1].key] == [line.key for line in before.lines]
    assert len({line.key for line in after.lines}) == 4
    assert [[line.index for line in group] for group in equal_lines(after.lines)] == [[2, 3]]
    assert before.digest != after.digest


def test_a_matrix_is_a_product_lines_side_by_side_and_a_draw_that_a_seed_repeats(tmp_path: Path) -> None:
    product = "product: {hyperparameters.lr: [0.1, 0.2], hyperparameters.depth: [1, 2, 3]}"
    lines = grid_of(tmp_path, f"{{{product}}}").lines
    assert [tuple(line.fields.values()) for line in lines[:4]] == [(0.1, 1), (0.1, 2), (0.1, 3), (0.2, 1)]
    assert len(lines) == 6
    both = grid_of(tmp_path, f"{{{product}, zip: {{hyperparameters.a: [1, 2], hyperparameters.b: [x, y]}}}}").lines
    assert len(both) == 12
    pairs = {(line.fields["hyperparameters.a"], line.fields["hyperparameters.b"]) for line in both}
    assert pairs == {(1, "x"), (2, "y")}


def test_a_value_of_a_matrix_is_one_value_whatever_it_holds(tmp_path: Path) -> None:
    """Lists and mappings are not divided, texts of numbers stay texts, and nothing in a text is expanded."""
    values = [[1, 2], [], {"a": [1]}, "a,b", "a=b", "1e-4", "true", "", " x ", "--x", "$HOME", "${x}", "`id`", "~", "*"]
    grid = grid_of(tmp_path, f"{{product: {{hyperparameters.x: {json.dumps([*values, 3, 0.5, False])}}}}}")
    jobs = [grid.template.job_of(line, "one") for line in grid.lines]
    assert [job.hyperparameters["x"] for job in jobs] == [*values, 3, 0.5, False]
    assert len({line.key for line in grid.lines}) == len(grid.lines)


def test_what_is_drawn_of_a_matrix_is_in_it_once_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    product = f"product: {{hyperparameters.lr: [0.1, 0.2], hyperparameters.depth: {list(range(50))}}}"
    lines = grid_of(tmp_path, f"{{{product}}}").lines
    drawn = [grid_of(tmp_path, f"{{{product}, random: {{count: 10, seed: {seed}}}}}") for seed in (1, 1, 2)]
    assert drawn[0].digest == drawn[1].digest != drawn[2].digest
    for grid in drawn:
        assert len({line.key for line in grid.lines} & {line.key for line in lines}) == 10


def test_a_matrix_without_end_is_refused(tmp_path: Path) -> None:
    fields = ", ".join(f"hyperparameters.h{number}: {list(range(100))}" for number in range(12))
    (found,) = problems_of(tmp_path, f"{{product: {{{fields}}}, random: {{count: 5}}}}")
    assert "must have at most" in found


def test_a_matrix_multiplies_the_lines_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SEED)
    lines = grid_of(tmp_path, "{file: a.txt, product: {hyperparameters.lr: [0.1, 0.2]}}").lines
    assert [(line.fields["region"], line.fields["hyperparameters.lr"]) for line in lines[:3]] == [
        ("us-east-1", 0.1),
        ("us-east-1", 0.2),
        ("us-west-2", 0.1),
    ]
    assert problems_of(tmp_path, "{file: a.txt, product: {region: [us-east-1]}}") == [
        "array.yaml: region: comes from the lines and from the matrix"
    ]
    assert problems_of(tmp_path, "{zip: {hyperparameters.a: [1, 2], hyperparameters.b: [1]}}") == [
        "array.yaml: zip: all fields must have as many values (got hyperparameters.a 2, hyperparameters.b 1)"
    ]


def test_a_field_may_be_a_part_of_the_one_before_it_and_none_takes_the_place_of_another(tmp_path: Path) -> None:
    opt, part = "hyperparameters.opt: [{lr: 1, wd: 0}]", "hyperparameters.opt.lr: [2, 3]"
    grid = grid_of(tmp_path, f"{{product: {{{opt}, {part}}}}}")
    written = [dict(line.fields) for line in grid.lines]
    jobs = [grid.template.job_of(line, "one") for line in grid.lines]
    assert [job.hyperparameters["opt"] for job in jobs] == [{"lr": 2, "wd": 0}, {"lr": 3, "wd": 0}]
    assert [dict(line.fields) for line in grid.lines] == written  # a line keeps what was written
    assert written[0]["hyperparameters.opt"] == {"lr": 1, "wd": 0}
    beside = grid_of(tmp_path, f"{{product: {{{part}, hyperparameters.opt.wd: [0]}}}}")
    assert beside.template.job_of(beside.lines[0], "one").hyperparameters["opt"] == {"lr": 2, "wd": 0}
    for first, second in (
        ("hyperparameters.opt.lr: [2]", opt),
        ("hyperparameters.lr: [1]", "'hyperparameters.\"lr\"': [2]"),
        ("image: ['repo:1']", "image_uri: ['repo:2']"),
        ("instance_groups.data_group.count: [2]", "'instance_groups[0].instance_count': [3]"),
    ):
        (said,) = problems_of(tmp_path, f"{{product: {{{first}, {second}}}}}")
        assert "is given twice" in said, said


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("{}", "must name a file, a query, product or zip"),
        ("{file: a, query: select 1, database: x}", "lines come from a file or from a query"),
        ("{query: select 1}", "a query needs a database"),
        ("{file: a, parameters: {b: 1}}", "parameters belong to a query"),
        ("{fil: a}", "unknown key"),
        ("{file: a, random: {count: 2}}", "random draws from product and zip"),
        ("{product: {hyperparameters.lr: []}}", "must have a value"),
        ("{zip: {hyperparameters.lr: [], hyperparameters.wd: [1]}}", "must have a value"),
    ],
)
def test_a_grids_file_that_breaks_a_rule_is_refused_with_its_line(tmp_path: Path, lines: str, said: str) -> None:
    assert any(text.startswith("array.yaml:3: ") and said in text for text in problems_of(tmp_path, lines))


def test_a_goal_or_a_key_of_the_objective_that_cannot_be_is_refused_with_what_can(tmp_path: Path) -> None:
    for objective, said in (
        ("{metric: loss, goal: least}", "array.yaml:4: objective.goal: must be one of min, max (got 'least')"),
        ("{metric: loss, gaol: min}", "array.yaml:4: objective.gaol: unknown key; did you mean 'goal'?"),
        ("loss", "array.yaml:4: objective: must be a mapping (got 'loss')"),
    ):
        with pytest.raises(JobInvalid) as refused:
            grid_of(tmp_path, "{product: {hyperparameters.lr: [1]}}", more=f"objective: {objective}\n")
        assert said in str(refused.value).replace(f"{tmp_path}/", "")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.txt is no file"):
        grid_of(tmp_path, "{file: nothing.txt}")


def test_comments_and_unknown_regions_are_not_taken_for_a_header(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("# \"the seed's, four\n" + SEED.replace("us-west-2", "# us-west-2"))
    lines = grid_of(tmp_path, "{file: a.txt}").lines
    assert [line.place.rpartition(":")[2] for line in lines] == ["2", "4", "5"]
    (tmp_path / "a.txt").write_text("mars-1,s3://b/1\nus-east-1,s3://b/2\nUS,/data\n")
    assert problems_of(tmp_path, "{file: a.txt}") == [
        "a.txt:1: region: must be a region (got 'mars-1')",
        "a.txt:3: region: must be a region (got 'US')",
    ]
    (tmp_path / "a.csv").write_text('# about\nhyperparameters.color,hyperparameters.note\n#fff,"a\n# b"\n')
    (line,) = grid_of(tmp_path, "{file: a.csv}").lines
    assert line.fields == {"hyperparameters.color": "#fff", "hyperparameters.note": "a\n# b"}, "these are no comments"


def test_what_is_wrong_with_a_column_or_a_combination_is_told_once_and_where(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "{product: {hyperparameters.a: [1]}, zip: {hyperparameters.a: [1]}}") == [
        "array.yaml: hyperparameters.a: comes twice"
    ]
    assert problems_of(tmp_path, "{product: {region: [us-east-1, mars]}}") == [
        "combination 2 of the matrix: region: must be a region (got 'mars')"
    ]


def test_an_engine_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("engine,hyperparameters.a\nlocal,1\nsagemakr,2\n,3\nslurmm,4\n")
    assert problems_of(tmp_path, "{file: a.csv}") == [
        "a.csv:3: engine: must be an engine that is installed (got 'sagemakr')",
        "a.csv:5: engine: must be an engine that is installed (got 'slurmm')",
    ]
