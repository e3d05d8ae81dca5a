"""Observations and actions of any environment become what the reward predictor reads, or are refused."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple

from drlhp.errors import SpaceError
from drlhp.wrapper.spaces import ActionEncoder, ObservationEncoder

COLOUR = Box(0, 255, (96, 96, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "planes"),
    [
        (Box(0, 255, (84, 84), np.uint8), 1),
        (Box(0, 255, (64, 48), np.uint8), 1),
        (Box(0, 255, (210, 160, 3), np.uint8), 3),
        (Box(0, 255, (3, 96, 96), np.uint8), 3),
        (Box(0, 255, (84, 84, 4), np.uint8), 4),
        (Box(0, 255, (4, 84, 84), np.uint8), 4),
        (Box(0, 255, (4, 96, 96, 3), np.uint8), 12),
        (Box(0, 255, (2, 3, 50, 60), np.uint8), 6),
        (Box(0.0, 1.0, (32, 40, 3), np.float32), 3),
        (Box(-1.0, 1.0, (1, 84, 84), np.float64), 1),
        (Box(0, 1000, (20, 20), np.int64), 1),
        (Box(0, 1, (8, 8, 12), np.uint8), 12),  # a board
        (Box(0, 1, (12, 8, 8), np.uint8), 12),
        (Box(0, 1, (2, 12, 8, 8), np.uint8), 24),
        (Box(0, 1, (5, 5, 5), np.uint8), 5),
    ],
)
def test_pictures_of_any_size_order_and_type(space: Box, planes: int) -> None:
    space.seed(0)
    encoder = ObservationEncoder(space)
    encoded = encoder.encode(np.stack([space.sample(), space.sample()]))
    assert encoder.kind == "pixels" and encoder.shape == (planes, 84, 84)
    assert encoded.shape == (2, planes, 84, 84) and encoded.dtype == np.uint8
    assert encoder.view(space.sample(), zoom=2).shape[2] == 3


def test_what_is_bright_stays_bright_where_it_was() -> None:
    """The same picture, whatever the order of its axes and its type; its channels stay apart."""
    picture = np.zeros((168, 168, 3), np.uint8)
    picture[:84, :84, 0], picture[84:, 84:, 2] = 255, 102
    expected = np.zeros((3, 84, 84), np.uint8)
    expected[0, :42, :42], expected[2, 42:, 42:] = 255, 102
    first = np.moveaxis(picture, -1, 0)
    forms: list[tuple[Box, np.ndarray]] = [
        (Box(0, 255, picture.shape, np.uint8), picture),
        (Box(0, 255, first.shape, np.uint8), first),
        (Box(0.0, 1.0, picture.shape, np.float32), (picture / 255).astype(np.float32)),
        (Box(-1.0, 1.0, first.shape, np.float64), first / 127.5 - 1),
    ]
    for space, observation in forms:
        np.testing.assert_array_equal(ObservationEncoder(space).encode(observation[None])[0], expected)
    np.testing.assert_array_equal(ObservationEncoder(forms[0][0]).view(picture, zoom=1), picture)
    gray = ObservationEncoder(forms[0][0], gray=True)
    assert gray.shape == (1, 84, 84) and gray.encode(picture[None])[0, 0, 0, 0] == 85
    four = np.concatenate([picture, np.full((168, 168, 1), 255, np.uint8)], axis=2)  # with how opaque it is
    opaque = ObservationEncoder(Box(0, 255, four.shape, np.uint8), channels=4)
    np.testing.assert_array_equal(opaque.view(four, 1), picture)
    stack = np.stack([np.zeros_like(picture), picture])
    np.testing.assert_array_equal(ObservationEncoder(Box(0, 255, stack.shape, np.uint8)).view(stack, 1), picture)


def test_vectors_and_what_can_be_laid_flat() -> None:
    spaces: list[tuple[gymnasium.Space[Any], int]] = [
        (Box(-np.inf, np.inf, (7,)), 7),
        (Discrete(5), 5),
        (MultiBinary(4), 4),
        (Box(0, 1, ()), 1),
    ]
    for space, size in spaces:
        encoder, samples = ObservationEncoder(space), [space.sample(), space.sample()]
        encoded = encoder.encode(np.array(samples) if encoder.takes_arrays else samples)
        assert encoder.kind == "vector" and encoded.shape == (2, size) and encoded.dtype == np.float32
    assert ObservationEncoder(Discrete(5)).encode([3]).tolist() == [[0, 0, 0, 1, 0]]


@pytest.mark.parametrize(("height", "width", "zoom"), [(210, 160, 4), (240, 320, 3), (480, 640, 1), (1200, 1000, 1)])
def test_pictures_are_magnified_as_far_as_two_fit_on_a_screen(height: int, width: int, zoom: int) -> None:
    """A clip holds each of its steps so."""
    space = Box(0, 255, (height, width, 3), np.uint8)
    assert ObservationEncoder(space).view(space.sample(), zoom=4).shape == (height * zoom, width * zoom, 3)


@pytest.mark.parametrize("space", [Box(0, 255, (4, 84, 84), np.uint8), Box(-1, 1, (3,)), COLOUR])
def test_what_is_kept_stays_when_the_environment_writes_into_its_memory(space: Box) -> None:
    space.seed(0)
    observations = np.stack([space.sample(), space.sample()])
    encoder = ObservationEncoder(space)
    kept, expected = encoder.kept(observations), encoder.encode(observations.copy())
    observations[:] = 0
    np.testing.assert_array_equal(kept, expected)


def test_a_transform_picks_the_picture_or_the_vector() -> None:
    space = Dict({"picture": COLOUR, "speed": Box(-1, 1, (2,))})
    state = space.sample()
    picture = ObservationEncoder(space, lambda observation: observation["picture"])
    assert picture.encode([state]).shape == (1, 3, 84, 84)
    vector = ObservationEncoder(space, lambda observation: observation["speed"])
    assert vector.encode([state, state]).shape == (2, 2) and vector.kind == "vector"
    scaled = ObservationEncoder(space, lambda observation: observation["picture"] / 255)
    np.testing.assert_array_equal(scaled.encode([state]), picture.encode([state]))
    unscaled = ObservationEncoder(space, lambda observation: observation["picture"] / 100)
    with pytest.raises(SpaceError, match="scales it to 0 to 1"):
        unscaled.encode([state])


@pytest.mark.parametrize(
    ("space", "transform", "words"),
    [
        (Dict({"picture": COLOUR, "speed": Box(-1, 1, (2,))}), None, "obs_transform_func"),
        (Tuple((Discrete(2), Discrete(2))), None, "obs_transform_func"),
        (Text(5), None, "neither one picture nor one vector"),
        (Sequence(Box(0, 1, (2,))), None, "neither one picture nor one vector"),
        (Box(-np.inf, np.inf, (10, 10)), None, "no range"),
        (Box(1.0, 1.0, (10, 10)), None, "no range"),
        (Box(0, 1, (0,)), None, "are empty"),
        (COLOUR, lambda observation: np.zeros(0), "are empty"),
        (Box(0, 255, (100, 100, 100), np.uint8), None, "no pictures"),
        (Box(0, 255, (2, 2, 84, 84, 3), np.uint8), None, "no pictures"),
        (COLOUR, lambda observation: "a picture", "array of numbers"),
    ],
)
def test_a_space_that_cannot_be_read_is_named_in_one_sentence(
    space: gymnasium.Space[Any], transform: Any, words: str
) -> None:
    with pytest.raises(SpaceError, match=words) as error:
        ObservationEncoder(space, transform)
    assert str(space) in str(error.value) and "\n" not in str(error.value).replace(str(space), "")


def test_observations_that_are_not_what_the_space_says() -> None:
    vectors = ObservationEncoder(Box(-1, 1, (3,)))
    for broken in (np.nan, np.inf):
        with pytest.raises(SpaceError, match=r"NaN or infinity.*fix"):
            vectors.encode(np.array([[0, broken, 0]], np.float32))
    with pytest.raises(SpaceError, match="NaN or infinity"):
        vectors.encode(np.array([[0, 1e39, 0]]))
    with pytest.raises(SpaceError, match="shape"):
        vectors.encode(np.zeros((1, 4), np.float32))
    with pytest.raises(SpaceError, match="shape"):
        ObservationEncoder(COLOUR).encode(np.zeros((1, 84, 84, 3), np.uint8))
    with pytest.raises(SpaceError, match="NaN or infinity"):
        ObservationEncoder(Box(0.0, 1.0, (20, 20))).encode(np.full((1, 20, 20), np.nan, np.float32))


def test_pictures_of_other_numbers_than_the_space_has() -> None:
    """What filters overshoot by is cut off; bytes stay what they are, whatever type they come in."""
    picture = np.full((1, 84, 84), 1.005, np.float32)
    unit = ObservationEncoder(Box(0.0, 1.0, (84, 84)))
    assert unit.encode(picture).tolist() == unit.encode(np.ones((1, 84, 84), np.float32)).tolist()
    with pytest.raises(SpaceError, match=r"holds 1\.1 to 1\.1, not 0 to 1"):
        unit.encode(np.full((1, 84, 84), 1.1, np.float32))
    space = Box(0, 255, (84, 84), np.uint8)
    whole = np.stack([space.sample(), np.ones((84, 84), np.uint8)])
    for dtype in (np.int64, np.float32):
        np.testing.assert_array_equal(ObservationEncoder(space).encode(whole.astype(dtype))[:, 0], whole)
    with pytest.raises(SpaceError, match="holds 300 to 300, not 0 to 255"):
        ObservationEncoder(space).encode(np.full((1, 84, 84), 300))


def test_actions_of_every_kind() -> None:
    shifted = ActionEncoder(Discrete(3, start=-1))
    assert shifted.n_actions == 3 and shifted.encode(np.array([-1, 1])).tolist() == [0, 2]
    several = ActionEncoder(MultiDiscrete([3, 2]))
    assert several.action_dim == 5 and several.encode([np.array([2, 0])]).tolist() == [[0, 0, 1, 1, 0]]
    space = Dict({"gas": Box(0, 1, (1,)), "gear": Discrete(3)})
    mixed = ActionEncoder(space)
    assert mixed.encode([{"gas": np.array([0.5]), "gear": 1}]).tolist() == [[0.5, 0, 1, 0]]
    far = [{"gas": np.array([7.0]), "gear": np.array([2])}]  # beyond a bound, and a number with an axis
    assert mixed.encode(far).tolist() == [[7, 0, 0, 1]]
    board = ActionEncoder(MultiDiscrete(np.array([[2, 3], [2, 2]]), start=np.array([[0, 1], [0, 0]])))
    assert board.encode([np.array([[1, 3], [0, 1]])]).tolist() == [[0, 1, 0, 0, 1, 1, 0, 0, 1]]
    assert ActionEncoder(MultiBinary((2, 2))).encode([np.array([[1.0, 0], [0, 1]])]).tolist() == [[1, 0, 0, 1]]
    arm = ActionEncoder(Box(-1, 1, (2, 2)))
    assert arm.action_dim == 4 and arm.encode(np.zeros((3, 2, 2))).shape == (3, 4)
    with pytest.raises(SpaceError, match="no fixed number"):
        ActionEncoder(Sequence(Discrete(2)))
    with pytest.raises(SpaceError, match=r"action of Box.*NaN or infinity"):
        arm.encode(np.full((1, 2, 2), np.nan))


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (Discrete(2), np.array([1, 7])),
        (Discrete(2), np.array([-1])),
        (Discrete(3, start=-1), np.array([-2])),
        (Discrete(2), np.array(["left"])),
        (Discrete(2), np.array([None])),
        (Box(-1, 1, (2,)), np.zeros((2, 3))),
        (MultiDiscrete([3, 2]), [np.array([2, 5])]),
        (MultiBinary(3), [np.array([1, 0])]),
        (MultiBinary(3), [np.array([1, 0, 5])]),
        (MultiDiscrete([3, 2]), [np.array([1, 1]), np.array([3, 0])]),
        (MultiDiscrete([3, 2]), [np.array([-1, 0])]),
        (MultiDiscrete([3, 2], start=[1, 1]), [np.array([1, 0])]),
        (Tuple((Discrete(3), Discrete(2, start=1))), [(-1, 1)]),
        (Tuple((Discrete(3), Discrete(2, start=1))), [(2, 0)]),
        (Dict({"gear": Discrete(3)}), [{}]),
        (Dict({"gear": Dict({"first": Discrete(3)})}), [{"gear": {"first": np.int64(-1)}}]),
    ],
)
def test_actions_that_the_space_does_not_have_are_refused(space: gymnasium.Space[Any], actions: Any) -> None:
    """Not by the reward predictor, and not by the trainer's process later, in which they would be indices."""
    with pytest.raises(SpaceError, match=r"among the actions .* does not have: fix the policy\.$") as error:
        ActionEncoder(space).encode(actions)
    assert str(space) in str(error.value)


def test_an_environment_may_write_into_the_actions_that_it_is_given() -> None:
    actions = np.full((2, 3), 0.5, np.float32)
    encoded = ActionEncoder(Box(-1, 1, (3,))).encode(actions)
    actions *= 4
    assert (encoded == 0.5).all()


def test_bounds_say_what_integers_are() -> None:
    """A board of 0 and 1 is black and white; small codes get a plane each, so that no two of them look alike."""
    board = np.zeros((1, 100, 100, 1), np.uint8)
    board[0, 40, 60] = 1
    for dtype in (np.uint8, np.int64, np.bool_):
        encoder = ObservationEncoder(Box(0, 1, (100, 100, 1), dtype))
        encoded = encoder.encode(board.astype(dtype))
        assert encoder.shape == (1, 84, 84) and encoded.max() > 60
        assert encoder.view(board[0].astype(dtype), 1)[40, 60].tolist() == [255, 255, 255]
    squares = np.array([[[0, 1, 2], [3, 0, 1]]] * 3, np.int8)[0][None] - 1  # (1, 2, 3) of -1 to 2
    game = ObservationEncoder(Box(-1, 2, (2, 3), np.int8))
    planes = game.encode(squares)
    assert game.shape == (4, 84, 84) and set(np.unique(planes)) == {0, 255}
    assert (planes.argmax(1)[0, [0, 0, 0, 83], [0, 40, 83, 0]] == [0, 1, 2, 3]).all()
    assert game.view(squares[0], 1)[..., 0].tolist() == [[0, 85, 170], [255, 0, 85]]
    with pytest.raises(SpaceError, match="holds 3 to 3, not -1 to 2"):
        game.encode(np.full((1, 2, 3), 3))
    stacked = ObservationEncoder(Box(0, 3, (2, 8, 8, 3), np.uint8))
    assert stacked.shape == (2 * 3 * 4, 84, 84)
    photograph = ObservationEncoder(Box(0, 200, (84, 84), np.uint8))  # with a maximum of its own
    assert photograph.encode(np.full((1, 84, 84), 150, np.uint8)).max() == 150


def test_people_see_every_plane_of_a_board() -> None:
    board = np.zeros((8, 8, 12), np.uint8)
    board[range(8), range(8), range(8)] = 1
    seen = ObservationEncoder(Box(0, 1, board.shape, np.uint8)).view(board, 1)
    assert len({tuple(colour) for colour in seen[range(8), range(8)].tolist()}) == 8
    assert not seen[0, 1:].any()


@pytest.mark.parametrize(
    "space",
    [
        Box(-8, 8, (3, 3), np.float32),  # FrameStackObservation of Pendulum
        Box(0.0, 1.0, (4, 200), np.float64),
        Box(0, 255, (7, 7, 3), np.uint8),  # MiniGrid's codes, as it declares them
        Box(0, 255, (25, 25, 3), np.uint8),
        Box(0, 2**16, (4, 4), np.int64),
        Box(0, 1, (8, 8, 111), np.bool_),  # type: ignore[arg-type]  # a board with too many planes
    ],
)
def test_small_matrices_are_vectors_that_lose_nothing(space: Box) -> None:
    space.seed(0)
    samples = np.stack([space.sample(), space.sample()])
    encoder = ObservationEncoder(space)
    encoded = encoder.encode(samples)
    assert encoder.kind == "vector" and encoded.dtype == np.float32
    np.testing.assert_array_equal(encoded, samples.reshape(2, -1).astype(np.float32))


def test_a_transform_that_picks_integers_keeps_their_bounds() -> None:
    space = Dict({"board": Box(0, 1, (40, 40), np.uint8), "more": Tuple((Box(0, 4, (9, 9), np.int64), Discrete(2)))})
    state: Any = space.sample()
    board = ObservationEncoder(space, lambda observation: observation["board"])
    assert set(np.unique(board.encode([state])[:, 0, ::42, ::42])) <= {0, 255}
    codes = ObservationEncoder(space, lambda observation: observation["more"][0])
    assert codes.shape == (5, 84, 84) and codes.encode([state]).max() == 255


def test_a_network_of_one_plane_is_not_given_a_board_of_many() -> None:
    with pytest.raises(SpaceError, match=r"12 planes, of which feature_points reads one: .*'cnn'\.$"):
        ObservationEncoder(Box(0, 1, (8, 8, 12), np.uint8), gray=True)
    assert ObservationEncoder(Box(0, 1, (40, 40, 1), np.uint8), gray=True).shape == (1, 84, 84)
