"""Filtering by kernel Bayes' rule, experiment 5.3 of Fukumizu, Song & Gretton (2013), its time, and an orientation from
camera frames.

    python -m benchmarks kbr_filter --rows rows.jsonl    # all of it, or these parts alone:
    python -m benchmarks kbr_filter normalised           # against extended and unscented Kalman filters
    python -m benchmarks kbr_filter dynamics             # as published: weights are not normalised
    python -m benchmarks kbr_filter time                 # a step at T = 5,000 and rank 100, dense and low rank
    python -m benchmarks kbr_filter camera --repeats 3   # orientation of a camera from noisy 20 x 20 RGB frames
    python -m benchmarks kbr_filter table                # the tables alone, of the rows of a file

It needs `pip install filterpy`.

The dynamics: x_{t+1} = (1 + b sin(M a)) (cos a, sin a) + N(0, 0.2^2), a = eta + the angle of x_t; y_t = x_t + N(0,
0.2^2). Rotation: eta = 0.3, b = 0; oscillatory rotation: eta = 0.4, b = 0.4, M = 8. The Kalman filters know the
dynamics and all variances; kernel Bayes learns from one path. Sigma points of the unscented filter lie near the mean
(alpha = 0.001) or at its standard deviations (alpha = 1). 200 new observations a run; both length scales are a multiple
of the medians, which with eps is chosen by split halves; delta = 2 eps. Takes an hour.
"""

import time

import numpy as np

from benchmarks.helpers import report
from numpyro_kme.embeddings.filtering import KernelBayesFilter
from numpyro_kme.embeddings.kernel_bayes import posterior_weights
from numpyro_kme.embeddings.parameter_choice import choose_by_holdout, kernel_bayes_candidates
from numpyro_kme.kernels import Gaussian, RotationGaussian, RotationTrace, median_heuristic, nearest_rotation

DYNAMICS = {"rotation": (0.3, 0.0, 0.0), "oscillatory rotation": (0.4, 0.4, 8.0)}
SIZES = (100, 200, 400, 800)
NOISE, SEEN = 0.2, 200
SCALES, ADDED = (0.35, 0.5, 0.7, 1.0, 1.4), (1e-3, 1e-2, 1e-1, 1.0, 10.0)
TOLERANCE = 1e-4


def move(x, eta, b, m):
    angle = np.arctan2(x[1], x[0]) + eta
    return (1.0 + b * np.sin(m * angle)) * np.array([np.cos(angle), np.sin(angle)])


def jacobian(x, eta, b, m):
    angle = np.arctan2(x[1], x[0]) + eta
    radius, slope = 1.0 + b * np.sin(m * angle), b * m * np.cos(m * angle)
    across, along = np.array([-np.sin(angle), np.cos(angle)]), np.array([np.cos(angle), np.sin(angle)])
    return np.outer(slope * along + radius * across, np.array([-x[1], x[0]]) / (x @ x))


def path(rng, length, dynamics):
    states = [move(rng.normal(size=2), *dynamics) + NOISE * rng.normal(size=2)]
    for _ in range(length - 1):
        states.append(move(states[-1], *dynamics) + NOISE * rng.normal(size=2))
    states = np.stack(states)
    return states, states + NOISE * rng.normal(size=states.shape)


def error(found, truth):
    return float(np.mean(np.sum(np.square(found - truth), axis=tuple(range(1, truth.ndim)))))


def extended(seen, dynamics):
    from filterpy.kalman import ExtendedKalmanFilter

    class Known(ExtendedKalmanFilter):
        def predict_x(self, u=0):
            self.F = jacobian(self.x, *dynamics)
            self.x = move(self.x, *dynamics)

    kalman = Known(dim_x=2, dim_z=2)
    kalman.x, kalman.P = seen[0].copy(), NOISE**2 * np.eye(2)
    kalman.Q = kalman.R = NOISE**2 * np.eye(2)
    found = [kalman.x.copy()]
    for y in seen[1:]:
        kalman.predict()
        kalman.update(y, lambda x: np.eye(2), lambda x: x)
        found.append(kalman.x.copy())
    return np.stack(found)


def unscented(seen, dynamics, alpha=1.0):
    from filterpy.kalman import MerweScaledSigmaPoints, UnscentedKalmanFilter

    points = MerweScaledSigmaPoints(2, alpha=alpha, beta=2.0, kappa=1.0)
    kalman = UnscentedKalmanFilter(2, 2, dt=1.0, hx=lambda x: x, fx=lambda x, dt: move(x, *dynamics), points=points)
    kalman.x, kalman.P = seen[0].copy(), NOISE**2 * np.eye(2)
    kalman.Q = kalman.R = NOISE**2 * np.eye(2)
    found = [kalman.x.copy()]
    for y in seen[1:]:
        kalman.predict()
        kalman.update(y)
        found.append(kalman.x.copy())
    return np.stack(found)


def kernel_bayes(train, seen, normalise):
    states, observations = train
    tried = kernel_bayes_candidates(
        Gaussian(median_heuristic(states)),
        Gaussian(median_heuristic(observations)),
        [added / len(states) for added in ADDED],
        scales_x=SCALES,
    )
    chosen = choose_by_holdout(states, observations, tried, normalise=normalise, tolerance=TOLERANCE)
    found = chosen.settings.filter(states, observations, tolerance=TOLERANCE)
    try:
        means = found.means(found.filter(seen, normalise=normalise))
    except FloatingPointError:
        means = None
    return means, int(np.argmin(chosen.errors))


def dynamics(rows, repeats, part="dynamics"):
    """Errors of all filters; with `part="normalised"` those of kernel Bayes with weights normalised at each time."""
    for seed in range(repeats):
        for name, kind in DYNAMICS.items():
            for size in SIZES:
                if rows.has(part=part, kind=name, size=size, seed=seed):
                    continue
                rng = np.random.default_rng([seed, size, list(DYNAMICS).index(name)])
                train, (truth, seen) = path(rng, size + 1, kind), path(rng, SEEN, kind)
                begun = time.process_time()
                found, chosen = kernel_bayes(train, seen, part == "normalised")
                others = {
                    "extended": error(extended(seen, kind), truth),
                    "unscented": error(unscented(seen, kind), truth),
                    "unscented_narrow": error(unscented(seen, kind, alpha=1e-3), truth),
                    "observations": error(seen, truth),
                }
                rows.add(
                    part=part,
                    kind=name,
                    size=size,
                    seed=seed,
                    kernel_bayes=None if found is None else error(found, truth),
                    **others,
                    scale=SCALES[chosen // len(ADDED)],
                    added=ADDED[chosen % len(ADDED)],
                    seconds=time.process_time() - begun,
                )


TIMED = (1250, 2500, 5000, 10_000)
RANK, STEPS = 100, 20
FRAME_RANK = 400


def timing(rows):
    """Seconds a step of the filter with factors of rank 100, and of the same step with dense matrices."""
    for size in TIMED:
        if rows.has(part="time", size=size):
            continue
        rng = np.random.default_rng(size)
        (states, observations), (_, seen) = (path(rng, n, DYNAMICS["rotation"]) for n in (size + 1, STEPS + 1))
        kernels = Gaussian(0.3 * median_heuristic(states)), Gaussian(0.3 * median_heuristic(observations))
        found = KernelBayesFilter.fit(*kernels, states, observations, 0.1 / size, tolerance=1e-14, max_rank=RANK)
        weights, factor, phi = (
            found.filter(seen),
            np.asarray(found.observations.values),
            found.observations.features(seen),
        )
        begun = time.process_time()
        for t in range(STEPS):
            posterior_weights(found.predict(weights[t]), factor, found.regularisation[1], phi[t + 1])[0]
        low = (time.process_time() - begun) / STEPS
        dense = dense_step(found, factor, weights[0], phi[1]) if size == 5000 else float("nan")
        rows.add(part="time", size=size, rank=found.observations.rank, low_rank=low, dense=dense)


def dense_step(found, factor, weights, phi):
    """One step by the printed formulas; the matrices that all steps share are made beforehand."""
    features, following = np.asarray(found.features), np.asarray(found.following)
    size, (epsilon, delta) = len(features), found.regularisation
    gram_x, across, gram_y = features @ features.T, features @ following.T, factor @ factor.T
    inverse = np.linalg.inv(gram_x + size * epsilon * np.eye(size))
    operator = inverse @ (across @ (inverse @ gram_x))
    begun = time.process_time()
    mu = operator @ weights
    product = mu[:, None] * gram_y
    product @ np.linalg.solve(product @ product + delta * np.eye(size), mu * (factor @ phi))
    return time.process_time() - begun


FRAMES, CHOSEN_FROM = 1800, 800
FRAME_SCALES = (0.25, 0.35, 0.5, 0.7)
PIXELS = 20
VARIANCES = (1e-4, 1e-3)


def orientations(rng, length):
    """A camera that turns about, with a random walk in the speed of yaw and in pitch and roll, `(length, 3, 3)`."""
    speed, tilt = 0.05, np.zeros(2)
    yaw, found = rng.uniform(0, 2 * np.pi), []
    for _ in range(length):
        speed = 0.05 + 0.9 * (speed - 0.05) + 0.02 * rng.normal()
        yaw, tilt = yaw + speed, 0.97 * tilt + 0.08 * rng.normal(size=2)
        found.append(about(2, yaw) @ about(1, 0.8 * np.tanh(tilt[0])) @ about(0, 0.8 * np.tanh(tilt[1])))
    return np.stack(found)


def about(axis, angle):
    i, j = [k for k in range(3) if k != axis]
    turn = np.eye(3)
    turn[i, i] = turn[j, j] = np.cos(angle)
    turn[i, j], turn[j, i] = -np.sin(angle), np.sin(angle)
    return turn


def render(rotations, colours):
    """Frames `(n, 1200)` from the middle of a cubic room, each wall 4 x 4 patches of one colour, `(3, 2, 4, 4, 3)`; 90
    degrees wide."""
    fine = (np.arange(2 * PIXELS) + 0.5) / PIXELS - 1.0
    rays = np.stack([np.ones((2 * PIXELS, 2 * PIXELS)), *np.meshgrid(fine, fine)], axis=-1).reshape(-1, 3)
    frames = []
    for rotation in rotations:
        ray = rays @ rotation.T
        wall = np.argmax(np.abs(ray), axis=1)
        ray = ray / np.abs(ray[np.arange(len(ray)), wall])[:, None]
        across = np.stack([ray[np.arange(len(ray)), (wall + k) % 3] for k in (1, 2)])
        patch = np.minimum(((across + 1.0) * 2.0).astype(int), 3)
        side = (ray[np.arange(len(ray)), wall] > 0).astype(int)
        fine_frame = colours[wall, side, patch[0], patch[1]].reshape(PIXELS, 2, PIXELS, 2, 3)
        frames.append(fine_frame.mean(axis=(1, 3)).ravel())
    return np.stack(frames)


def quaternions(rotations):
    """Unit quaternions `(n, 4)` with a real part of 0 or more: after a full turn one without jumps has the other sign,
    which a frame does not show."""
    from scipy.spatial.transform import Rotation

    found = Rotation.from_matrix(rotations).as_quat()
    return found * np.where(found[:, 3:] < 0, -1.0, 1.0)


def linear_kalman(states, frames, seen, components):
    """Kalman filter with every linear relation learnt by least squares; frames by their principal components."""
    from filterpy.kalman import KalmanFilter

    centre, mean = states.mean(axis=0), frames.mean(axis=0)
    basis = np.linalg.svd(frames - mean, full_matrices=False)[2][:components]
    x, y = states - centre, (frames - mean) @ basis.T
    moves, *_ = np.linalg.lstsq(x[:-1], x[1:], rcond=None)
    shows, *_ = np.linalg.lstsq(x, y, rcond=None)
    kalman = KalmanFilter(dim_x=x.shape[1], dim_z=components)
    kalman.F, kalman.H = moves.T, shows.T
    kalman.Q, kalman.R = np.cov((x[1:] - x[:-1] @ moves).T), np.cov((y - x @ shows).T)
    kalman.x, kalman.P = np.zeros(x.shape[1]), np.cov(x.T)
    found = []
    for z in (seen - mean) @ basis.T:
        kalman.predict()
        kalman.update(z)
        found.append(kalman.x.copy())
    return np.stack(found) + centre


def best_kalman(states, frames, seen, decode, truth):
    """With the number of components that is best by split halves."""
    half = len(states) // 2
    scores = {
        k: error(decode(linear_kalman(states[:half], frames[:half], frames[half:], k)), truth[half:])
        for k in (5, 10, 20, 50, 100)
    }
    return decode(linear_kalman(states, frames, seen, min(scores, key=scores.get)))


def film(seed, variance):
    """Orientations and frames, for training and for the test."""
    rng = np.random.default_rng([seed, 53])
    colours = rng.uniform(size=(3, 2, 4, 4, 3))
    turns = orientations(rng, 2 * FRAMES)
    frames = render(turns, colours)
    frames = frames + np.sqrt(variance) * rng.normal(size=frames.shape)
    return turns[:FRAMES], frames[:FRAMES], turns[FRAMES:], frames[FRAMES:]


def by_kalman(train, known, seen):
    from scipy.spatial.transform import Rotation

    as_matrices = lambda states: states.reshape(-1, 3, 3)  # noqa: E731
    found = best_kalman(train.reshape(-1, 9), known, seen, as_matrices, train)
    to_rotations = lambda q: Rotation.from_quat(q).as_matrix()  # noqa: E731
    return {
        "Kalman, 9 dim.": found,
        "Kalman, 9 dim., nearest rotation": nearest_rotation(found),
        "Kalman, quaternion": best_kalman(quaternions(train), known, seen, to_rotations, train),
    }


def by_kernels(name, kernel, flat, train, known, seen):
    """Means, and modes on rotations, of the kernel Bayes filter with settings from the first 800 frames."""
    states = train.reshape(-1, 9) if flat else train
    added = [c / FRAMES for c in (1e-3, 1e-2, 1e-1, 1.0)]
    tried = kernel_bayes_candidates(kernel, Gaussian(median_heuristic(known)), added, scales_x=FRAME_SCALES)
    few = slice(CHOSEN_FROM)
    chosen = choose_by_holdout(states[few], known[few], tried, modes=name == "trace", max_rank=FRAME_RANK).settings
    fitted = chosen.filter(states, known, max_rank=FRAME_RANK)
    weights = fitted.filter(seen)
    found = {f"KBR, {name}, means": fitted.means(weights).reshape(-1, 3, 3)}
    return found if flat else found | {f"KBR, {name}, modes": fitted.modes(weights)}


def camera(rows, repeats):
    for seed in range(repeats):
        for variance in VARIANCES:
            made = None
            for method in ("Kalman", "Gaussian", "trace", "Gaussian on rotations"):
                if rows.has(part="camera", variance=variance, seed=seed, method=method):
                    continue
                train, known, test, seen = made = made or film(seed, variance)
                scale = float(median_heuristic(train.reshape(-1, 9)))
                kernel = {"Gaussian": Gaussian(scale), "trace": RotationTrace()}.get(method, RotationGaussian(scale))
                begun = time.process_time()
                if method == "Kalman":
                    found = by_kalman(train, known, seen)
                else:
                    found = by_kernels(method, kernel, method == "Gaussian", train, known, seen)
                seconds = time.process_time() - begun
                for name, value in found.items():
                    norm = np.mean(np.linalg.norm(value - test, axis=(1, 2)))
                    told = dict(part="camera", variance=variance, seed=seed, method=method, name=name)
                    rows.add(**told, norm=norm, square=error(value, test), seconds=seconds)


def write(rows):
    sections = []
    filters = {"extended": "extended", "unscented_narrow": "unscented, alpha 0.001", "unscented": "unscented, alpha 1"}
    for part, title in (
        ("normalised", "Filtering 5.3"),
        ("dynamics", "Filtering 5.3 as published: weights are not normalised at each time"),
    ):
        lines = []
        for name in DYNAMICS:
            for size in SIZES:
                of = [r for r in rows if (r["part"], r.get("kind"), r.get("size")) == (part, name, size)]
                kept = [r for r in of if r["kernel_bayes"] is not None]
                if kept:
                    values = {
                        key: np.array([r[key] for r in kept]) for key in ("kernel_bayes", *filters, "observations")
                    }
                    mean_se = lambda v, sign="": f"{v.mean():{sign}.4f} ({v.std(ddof=1) / np.sqrt(len(v)):.4f})"  # noqa: E731
                    gaps = [mean_se(values["kernel_bayes"] - values[key], "+") for key in filters]
                    seconds = np.mean([r["seconds"] for r in of])
                    lines.append(
                        [name, size, len(of), len(of) - len(kept), *map(mean_se, values.values()), *gaps, seconds]
                    )
        header = ["dynamics", "T", "runs", "lost", "KBR", *filters.values(), "observations"]
        header += [*(f"KBR - {label}" for label in filters.values()), "seconds"]
        note = (
            "Mean squared error (standard error) of 200 states; seconds to choose among 25 settings, learn and filter. "
        )
        note += "Runs in which the filter lost the state are left out.\n\n"
        if lines:
            sections.append((title, note + report.table(header, lines)))
    timed = [
        [r["size"], r["rank"], 1e3 * r["low_rank"], r["dense"], r["dense"] / r["low_rank"]]
        for r in rows
        if r["part"] == "time"
    ]
    sections.append(("Time of a step", report.table(["T", "rank", "low rank, ms", "dense, s", "ratio"], timed)))
    chosen = [r for r in rows if r["part"] == "camera"]
    lines = []
    for variance in VARIANCES:
        for name in dict.fromkeys(r["name"] for r in chosen):
            of = [r for r in chosen if r["variance"] == variance and r["name"] == name]
            norms, squares, seconds = (np.array([r[k] for r in of]) for k in ("norm", "square", "seconds"))
            mean_se = f"{norms.mean():.3f} ({norms.std(ddof=1) / np.sqrt(len(norms)):.3f})" if of else ""
            lines += [[variance, name, len(of), mean_se, squares.mean(), seconds.mean()]] if of else []
    header = ["noise variance", "filter", "runs", "Frobenius norm of the error (s.e.)", "its square", "seconds"]
    sections.append(("Orientation of a camera in a room", report.table(header, lines)))
    report.save("kbr_filter", "Filtering by kernel Bayes' rule", sections, {"rows": rows.rows})


def main():
    parser = report.parser(__doc__, resumes=True)
    parts = ("normalised", "dynamics", "time", "camera")
    parser.add_argument("part", nargs="?", choices=(*parts, "all", "table"), default="all")
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    for part in parts if options.part == "all" else [options.part]:
        if part in ("dynamics", "normalised"):
            dynamics(options.rows, options.repeats, part)
        elif part == "time":
            timing(options.rows)
        elif part == "camera":
            camera(options.rows, options.repeats)
    write(options.rows)
