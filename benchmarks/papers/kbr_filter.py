"""Filtering by kernel Bayes' rule, experiment 5.3 of Fukumizu, Song & Gretton (2013), and an orientation from camera
frames.

    python -m benchmarks kbr_filter --rows rows.jsonl            # all of it, or a part alone:
    python -m benchmarks kbr_filter --parts normalised           # against extended and unscented Kalman filters
    python -m benchmarks kbr_filter --parts dynamics             # as published: weights are not normalised
    python -m benchmarks kbr_filter --parts camera --repeats 3   # orientation of a camera from noisy 20 x 20 RGB frames

It needs `pip install filterpy`. The dynamics: x_{t+1} = (1 + b sin(M a)) (cos a, sin a) + N(0, 0.2^2), a = eta + the
angle of x_t; y_t = x_t + N(0, 0.2^2). Rotation: eta = 0.3, b = 0; oscillatory rotation: eta = 0.4, b = 0.4, M = 8. The
Kalman filters know the dynamics and all variances; kernel Bayes learns from one path. Sigma points of the unscented
filter lie near the mean (alpha = 0.001) or at its standard deviations (alpha = 1). 200 new observations a run; both
length scales are a multiple of the medians, which with eps is chosen by split halves; delta = 2 eps. Takes an hour.
"""

import numpy as np
from scipy.spatial.transform import Rotation
from scipy.stats import sem

from benchmarks.helpers import report
from numpyro_kme.embeddings.parameter_choice import choose_by_holdout, kernel_bayes_candidates
from numpyro_kme.kernels import Gaussian, RotationGaussian, RotationTrace, median_heuristic, nearest_rotation

DYNAMICS = {"rotation": (0.3, 0.0, 0.0), "oscillatory rotation": (0.4, 0.4, 8.0)}
SIZES = (100, 200, 400, 800)
NOISE, SEEN = 0.2, 200
SCALES, ADDED = (0.35, 0.5, 0.7, 1.0, 1.4), (1e-3, 1e-2, 1e-1, 1.0, 10.0)
TOLERANCE = 1e-4
PARTS = {
    "normalised": "Filtering 5.3",
    "dynamics": "Filtering 5.3 as published: weights are not normalised at each time",
    "camera": "Orientation of a camera in a room",
}
FILTERS = {"extended": "extended", "unscented_narrow": "unscented, alpha 0.001", "unscented": "unscented, alpha 1"}


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


def filtered(kalman, seen, update):
    """States of a Kalman filter of two dimensions that begins at the first observation."""
    kalman.x, kalman.P = seen[0].copy(), NOISE**2 * np.eye(2)
    kalman.Q = kalman.R = NOISE**2 * np.eye(2)
    found = [kalman.x.copy()]
    for y in seen[1:]:
        kalman.predict()
        update(y)
        found.append(kalman.x.copy())
    return np.stack(found)


def extended(seen, dynamics):
    from filterpy.kalman import ExtendedKalmanFilter

    class Known(ExtendedKalmanFilter):
        def predict_x(self, u=0):
            self.F = jacobian(self.x, *dynamics)
            self.x = move(self.x, *dynamics)

    kalman = Known(dim_x=2, dim_z=2)
    return filtered(kalman, seen, lambda y: kalman.update(y, lambda x: np.eye(2), lambda x: x))


def unscented(seen, dynamics, alpha=1.0):
    from filterpy.kalman import MerweScaledSigmaPoints, UnscentedKalmanFilter

    points = MerweScaledSigmaPoints(2, alpha=alpha, beta=2.0, kappa=1.0)
    kalman = UnscentedKalmanFilter(2, 2, dt=1.0, hx=lambda x: x, fx=lambda x, dt: move(x, *dynamics), points=points)
    return filtered(kalman, seen, kalman.update)


def kernel_bayes(train, seen, normalise):
    """Means of the states, None where the filter lost them."""
    states, observations = train
    kernels = Gaussian(median_heuristic(states)), Gaussian(median_heuristic(observations))
    tried = kernel_bayes_candidates(*kernels, [added / len(states) for added in ADDED], scales_x=SCALES)
    chosen = choose_by_holdout(states, observations, tried, normalise=normalise, tolerance=TOLERANCE)
    found = chosen.settings.filter(states, observations, tolerance=TOLERANCE)
    try:
        return found.means(found.filter(seen, normalise=normalise))
    except FloatingPointError:
        return None


def compared(part, kind, size, seed):
    """Errors of all filters on one path."""
    dynamics, rng = DYNAMICS[kind], np.random.default_rng([seed, size, list(DYNAMICS).index(kind)])
    train, (truth, seen) = path(rng, size + 1, dynamics), path(rng, SEEN, dynamics)
    found, _, seconds = report.timed(kernel_bayes, train, seen, part == "normalised")
    return {
        "kernel_bayes": None if found is None else error(found, truth),
        "extended": error(extended(seen, dynamics), truth),
        "unscented": error(unscented(seen, dynamics), truth),
        "unscented_narrow": error(unscented(seen, dynamics, alpha=1e-3), truth),
        "observations": error(seen, truth),
        "seconds": seconds,
    }


FRAMES, CHOSEN_FROM, FRAME_RANK = 1800, 800, 400
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
        found.append([yaw, *(np.array([-0.8, 0.8]) * np.tanh(tilt))])
    return Rotation.from_euler("ZYX", found).as_matrix()


def render(rotations, colours):
    """Frames `(n, 1200)` from the middle of a cubic room, each wall 4 x 4 patches of one colour, `(3, 2, 4, 4, 3)`; 90
    degrees wide."""
    fine = (np.arange(2 * PIXELS) + 0.5) / PIXELS - 1.0
    rays = np.stack([np.ones((2 * PIXELS, 2 * PIXELS)), *np.meshgrid(fine, fine)], axis=-1).reshape(-1, 3)
    every, frames = np.arange(len(rays)), []
    for rotation in rotations:
        ray = rays @ rotation.T
        wall = np.argmax(np.abs(ray), axis=1)
        ray = ray / np.abs(ray[every, wall])[:, None]
        across = np.stack([ray[every, (wall + k) % 3] for k in (1, 2)])
        patch = np.minimum(((across + 1.0) * 2.0).astype(int), 3)
        side = (ray[every, wall] > 0).astype(int)
        fine_frame = colours[wall, side, patch[0], patch[1]].reshape(PIXELS, 2, PIXELS, 2, 3)
        frames.append(fine_frame.mean(axis=(1, 3)).ravel())
    return np.stack(frames)


def film(seed, variance):
    """Orientations and frames, for training and for the test."""
    rng = np.random.default_rng([seed, 53])
    colours = rng.uniform(size=(3, 2, 4, 4, 3))
    turns = orientations(rng, 2 * FRAMES)
    frames = render(turns, colours)
    frames = frames + np.sqrt(variance) * rng.normal(size=frames.shape)
    return turns[:FRAMES], frames[:FRAMES], frames[FRAMES:], turns[FRAMES:]


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


def by_kalman(train, known, seen):
    """With the number of components that is best by split halves; on matrices, and on quaternions of real part 0 or
    more: after a full turn one without jumps has the other sign, which a frame does not show."""

    def best(states, decode):
        half = len(states) // 2
        score = lambda k: error(decode(linear_kalman(states[:half], known[:half], known[half:], k)), train[half:])  # noqa: E731
        return decode(linear_kalman(states, known, seen, min((5, 10, 20, 50, 100), key=score)))

    quaternions = Rotation.from_matrix(train).as_quat()
    quaternions *= np.where(quaternions[:, 3:] < 0, -1.0, 1.0)
    found = best(train.reshape(-1, 9), lambda states: states.reshape(-1, 3, 3))
    turned = best(quaternions, lambda states: Rotation.from_quat(states).as_matrix())
    named = {"Kalman, 9 dim.": found, "Kalman, 9 dim., nearest rotation": nearest_rotation(found)}
    return named | {"Kalman, quaternion": turned}


def by_kernel(name, train, known, seen):
    """Means, and modes on rotations, of the kernel Bayes filter with settings from the first 800 frames."""
    flat, scale = name == "Gaussian", float(median_heuristic(train.reshape(-1, 9)))
    kernel = {"Gaussian": Gaussian(scale), "trace": RotationTrace()}.get(name, RotationGaussian(scale))
    states = train.reshape(-1, 9) if flat else train
    added = [c / FRAMES for c in (1e-3, 1e-2, 1e-1, 1.0)]
    tried = kernel_bayes_candidates(kernel, Gaussian(median_heuristic(known)), added, scales_x=FRAME_SCALES)
    few = slice(CHOSEN_FROM)
    chosen = choose_by_holdout(states[few], known[few], tried, modes=name == "trace", max_rank=FRAME_RANK).settings
    fitted = chosen.filter(states, known, max_rank=FRAME_RANK)
    weights = fitted.filter(seen)
    found = {f"KBR, {name}, means": fitted.means(weights).reshape(-1, 3, 3)}
    return found if flat else found | {f"KBR, {name}, modes": fitted.modes(weights)}


def filmed(part, variance, seed, method):
    *given, test = film(seed, variance)
    found, _, seconds = report.timed(by_kalman if method == "Kalman" else lambda *a: by_kernel(method, *a), *given)
    norms = {name: np.mean(np.linalg.norm(value - test, axis=(1, 2))) for name, value in found.items()}
    return {"norms": norms, "squares": {n: error(value, test) for n, value in found.items()}, "seconds": seconds}


def mean_se(values, sign="", digits=4):
    return f"{np.mean(values):{sign}.{digits}f} ({sem(values):.{digits}f})"


def table_of_filters(rows, part):
    lines = []
    for kind in DYNAMICS:
        for size in SIZES:
            runs = rows.of(part=part, kind=kind, size=size)
            kept = [run for run in runs if run["kernel_bayes"] is not None]
            of = {key: np.array([run[key] for run in kept]) for key in ("kernel_bayes", *FILTERS, "observations")}
            gaps = [mean_se(of["kernel_bayes"] - of[key], "+") for key in FILTERS]
            seconds = np.mean([run["seconds"] for run in runs])
            lines.append([kind, size, len(runs), len(runs) - len(kept), *map(mean_se, of.values()), *gaps, seconds])
    header = ["dynamics", "T", "runs", "lost", "KBR", *FILTERS.values(), "observations"]
    header += [*(f"KBR - {label}" for label in FILTERS.values()), "seconds"]
    note = "Mean squared error (standard error) of 200 states; seconds to choose among 25 settings, learn and filter. "
    return note + "Runs in which the filter lost the state are left out.\n\n" + report.table(header, lines)


def table_of_films(rows):
    lines = []
    for variance in VARIANCES:
        runs = rows.of(part="camera", variance=variance)
        for name in dict.fromkeys(name for run in runs for name in run["norms"]):
            of = dict(part="camera", variance=variance)
            norms, squares = (rows.column(what, name, **of) for what in ("norms", "squares"))
            seconds = np.mean([run["seconds"] for run in runs if name in run["norms"]])
            lines.append([variance, name, len(norms), mean_se(norms, digits=3), np.mean(squares), seconds])
    header = ["noise variance", "filter", "runs", "Frobenius norm of the error (s.e.)", "its square", "seconds"]
    return report.table(header, lines)


def main(rows, parts=tuple(PARTS), repeats=30):
    sections, methods = [], ("Kalman", "Gaussian", "trace", "Gaussian on rotations")
    for part in parts:
        if part == "camera":
            rows.fill(filmed, part=[part], variance=VARIANCES, seed=range(repeats), method=methods)
            sections.append((PARTS[part], table_of_films(rows)))
        else:
            rows.fill(compared, part=[part], kind=DYNAMICS, size=SIZES, seed=range(repeats))
            sections.append((PARTS[part], table_of_filters(rows, part)))
    return "Filtering by kernel Bayes' rule", sections, rows
