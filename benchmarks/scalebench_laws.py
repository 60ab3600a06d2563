"""The 65 laws of ScaleBench (Li et al. 2026, arXiv 2604.22753) as formulas of ``moejax fit --form``.

Formulas are in the benchmark's order by task; names, constants and centring are our choice. Columns are rescaled, as in
``log(D/2e10)``, only where coefficients absorb the constant, so that the set of functions is unchanged. A coefficient
that the benchmark passes through softplus or exp is positive here, and tanh(x) is ``2*sigmoid(2*x) - 1``.
"""

from __future__ import annotations

from dataclasses import dataclass

from moejax.laws.law import Sign


@dataclass(frozen=True)
class Form:
    """A law of the benchmark."""

    text: str
    either: str = ""
    """Coefficients of either sign, although the formula suggests that they are positive."""
    above: str = ""
    """Positive coefficients, although the formula suggests either sign."""

    @property
    def joint(self) -> bool:
        """True if one formula covers all domains of a mixture; the columns ``d1``, … mark each row's domain."""
        return "d1*" in self.text

    @property
    def signs(self) -> dict[str, Sign]:
        """Return the signs as arguments of ``formula_law``."""
        return dict.fromkeys(self.either.split(), "any") | dict.fromkeys(self.above.split(), "+")


_LOGS = "u = log(lr/0.002), v = log(B/200), s = log(D/2e10), n = log(N/3e8)"


def _quadratic(letter: str, variables: tuple[str, ...] = ("u", "v", "s", "n")) -> str:
    """Return a polynomial of degree 2 with a coefficient per term."""
    terms = [f"{letter}0", *(f"{letter}{x}*{x}" for x in variables)]
    terms += [f"{letter}{x}{y}*{x}*{y}" for i, x in enumerate(variables) for y in variables[i:]]
    return " + ".join(terms)


def _log10(text: str) -> str:
    return text.replace("log(", "log10(")


_OTHERS = "w1*q1 + w2*q2 + w3*q3 + w4*q4"
_SHARES = [f"max(p{k}, 1e-12)" for k in range(1, 6)]


def _joint(of: str) -> str:
    """Return a formula for five domains; ``d1`` … ``d5`` mark a row's domain."""
    powers = [f"d{i}*(b{i} + " + " + ".join(f"c{i}{k}*z{k}" for k in range(1, 6)) + ")" for i in range(1, 6)]
    return f"loss = {of.format(' + '.join(powers))}, " + ", ".join(
        f"z{k} = {share}^x{k}" for k, share in enumerate(_SHARES, 1)
    )


_EXPONENTS = "x1 x2 x3 x4 x5"
_JOINT = " ".join(f"b{i} " + " ".join(f"c{i}{k}" for k in range(1, 6)) for i in range(1, 6))

FORMS: dict[str, tuple[Form, ...]] = {
    "parallel": (
        Form("loss = c + a/N^alpha + b/S^beta + d/(N^alpha*S^beta)", "c b d"),
        Form("loss = c + a/N^alpha + b/S^beta", "c b"),
        Form("loss = c + a/N^alpha + b/(1 + S)", "c b"),
        Form("loss = c + a/N^alpha + b/S^0.5", "c b"),
        Form("loss = c + (a/(N*(1 + k*log(S))))^alpha", "c k"),
        Form("loss = c + a*(1/N^alpha + 1/S^beta)", "c"),
        Form("loss = c + a/(N^alpha*(1 + k*log(S)))", "c k", "a"),
        Form("loss = (a/N^alpha + c)/(1 + k*log(S))", "c k"),
        Form("loss = a/(N^alpha*S^beta)"),
        Form("loss = (a/N^alpha + c)/S^beta", "c"),
    ),
    "vocab": (
        Form("loss = c + a*V^p*N^q*D^r", "c p q r"),
        Form(
            "loss = c + a*m*(1 + k*(log(V/2e4) - v)^2), m = ((N^(-alpha*r) + D^(-beta*r))/2)^(1/r)",
            "c k v",
            "a r",
        ),
        Form("loss = c + ((a/N^alpha)^q + (b/(D*V^phi)^beta)^q)^(1/q)", "c phi", "q"),
        Form("loss = c + a/(max(N^p, l*D^q)^r*V^g)", "c g"),
        Form("loss = c + a*N^p*V^q*D^r + b*N^t", "c p q r b t"),
        Form("loss = c + a/(N*V^k)^alpha + b/(D*V^l)^beta", "c k l"),
        Form("loss = c + a/(N^alpha*D^beta) + b*V^gamma/D^delta", "c gamma"),
        Form("loss = c + k*log(V/2e4) + V^beta*(a/N^alpha + b/D^gamma)", "c k beta"),
        Form("loss = c + a*(1 + g*log(V))/(N^alpha*D^beta) + b*V^p", "c g b p", "a"),
        Form(
            "loss = c + exp(a + p*n + q*v + r*v^2 + s*d + t*v*d), n = log(N/2e8), v = log(V/2e4), d = log(D/1e10)",
            "c",
        ),
    ),
    "domain_mixture": (
        Form(f"loss = a + b*log(max(p, 1e-12)) + {_OTHERS}"),
        Form(f"loss = a*exp({_OTHERS})/(p + e)^alpha", above="a e"),
        Form(f"loss = a + b*max(p, 1e-12)^x + {_OTHERS}", "a b x"),
        Form(_joint("exp({})"), _EXPONENTS),
        Form(_joint("{}"), f"{_EXPONENTS} {_JOINT}"),
        Form(f"loss = c + a/max(p + {_OTHERS}, 1e-12)^alpha", "c"),
        Form(
            f"loss = a + b*p + c*log(max(p, 1e-12)) + {_OTHERS} + e*("
            + " + ".join(f"log(max(q{k}, 1e-12))" for k in range(1, 5))
            + ")"
        ),
        Form("loss = c - a*max(p, 1e-12)^b", "c", "b"),
        Form("loss = a + b*l + c*l^2, l = log(max(p, 1e-12))"),
        Form("loss = a + b/(p + e)", "a b", "e"),
    ),
    "moe": (
        Form("loss = c + a/(N^alpha*E^beta)", "c beta"),
        Form("loss = c + a/(N^alpha*E^beta)^gamma", "c", "alpha beta"),
        Form("loss = c + a/(N^alpha*(1 + b*E^beta)) + k/N^(0.6*alpha)", "c k", "beta"),
        Form("loss = c + a/(N^alpha*(1 + b*E)^gamma) + d*(log(N/1e8) - 0.4*log(1 + E))", "c d", "b"),
        Form("loss = c + exp(p + q*e + r*n + s*e*n) + t*e, e = log(E), n = log(N/1e8)", "c"),
        Form("loss = c + a*(1 + b/E^beta)/N^alpha + d/(E*N^0.05)", "c b d"),
        Form("loss = c + a*E^p*N^q + b*N^r", "c a b p q r"),
        Form("loss = c + a*N^q*E^p", "c p q"),
        Form("loss = c + a/(N*E^g)^alpha", "c g"),
        Form("loss = c + a*((1 + b*E^gamma)/(1 + b))^(-beta)/(N/1e9)^alpha", "c", "b gamma"),
    ),
    "data_constrained": (
        Form("loss = a/N^alpha + b/D^beta + e*U^gamma*N^delta", "gamma delta"),
        Form("loss = c + a*U^p + b*N^q + d*D^r", "c a b d p q r"),
        Form(
            "loss = c + a/m^alpha + b/t^alpha, m = k*(1 + f*(1 - exp(-max(N/k - 1, 0)/f))), k = min(rho*U, N), "
            "t = U*(1 + g*(1 - exp(-(D/U - 1)/g)))",
            "c",
            "a b rho f g",
        ),
        Form("loss = c + a/N^alpha + b/t^beta, t = D/(1 + D/(s*U*N^d))", "c d"),
        Form("loss = c + a/N^alpha + b/(U^gamma*D^(1 - gamma))^beta", "c", "gamma"),
        Form("loss = c + a/N^alpha + b/t^beta, t = D/(1 + k*max(D/U - 1, 1e-12)^f*N^d)", "c d", "f"),
        Form("loss = c + a/(N*U)^p + b/D^q + k*N^r", "c k r"),
        Form("loss = c + a/D^alpha + b/N^beta + d*log(U/D + 1)^gamma", "c a b d", "gamma"),
        Form("loss = c + a/N^alpha + b*(1 + k/U^gamma)/D^beta", "c"),
        Form("loss = c + a/N^alpha + b*(1/D^(beta*q) + 1/(k*U)^(beta*q))^(1/q)", "c", "q"),
    ),
    "lr_bsz": (
        Form(f"loss = exp({_quadratic('c')}), {_LOGS}"),
        Form(
            "loss = l + a/N^alpha + b/D^beta + d*(N^k/D)^delta + e/B^epsilon + f*x^2 + g*y^2 "
            "+ 2*(2*sigmoid(2*rho) - 1)*(f*g)^0.5*x*y, "
            "x = u - (x0 + xn*n + xs*s + xv*v), y = v - (y0 + yn*n + ys*s), "
            "f = log(1 + exp(max(f0 + fn*n + fs*s + fv*v, -20))), g = log(1 + exp(max(g0 + gn*n + gs*s + gv*v, -20))), "
            + _LOGS,
            "l k",
            "delta",
        ),
        Form(
            "loss = l + a/N^alpha + b/D^beta + d/(N^p*D^q) + f*exp(fn*n + fs*s + fv*v)*(u - x)^2 "
            "+ g*exp(gn*n + gs*s)*(v - y)^2, x = x0 + xn*n + xs*s + xv*v + xns*n*s, y = y0 + yn*n + ys*s + yns*n*s, "
            + _LOGS,
            "l",
            "f g",
        ),
        Form(
            f"loss = exp({_quadratic('c')} + k*(s - n) + i1*(100/B) + i2*(100/B)^2 + i3*(1e10/D) + i4*(1e8/N)), "
            + _LOGS,
            "i1 i2 i3 i4",
        ),
        Form(
            "loss = l + a/N^alpha + b/D^beta + d/B^delta + r*exp(-rho*log(D/N)^2) + h/(D/B)^eta "
            f"+ f*exp(fv*v + fn*n + fs*s)*(u - (x0 + xv*v + xn*n + xs*s))^2, {_LOGS}",
            "l",
            "r rho f",
        ),
        Form(
            "loss = l + exp(c0 + cs*s + cn*n + csn*s*n + cu*u + cuu*u^2 + cv*v + cvv*v^2 + cuv*u*v + cus*u*s + cun*u*n "
            f"+ cvs*v*s + cvn*v*n), {_LOGS}",
            "l",
        ),
        Form(f"loss = l + exp({_quadratic('c')}) + exp({_quadratic('d')}), {_LOGS}", "l"),
        Form(
            "loss = l + a/N^alpha + b/D^beta + d/(D/N)^delta + f*x^2*(1 + (2*sigmoid(2*fa) - 1)*(2*sigmoid(2*x) - 1)) "
            "+ g*y^2*(1 + (2*sigmoid(2*ga) - 1)*(2*sigmoid(2*y) - 1)) + h*(s - n - z)^2, "
            f"x = u - (x0 + xv*v + xn*n + xs*s), y = u - 0.5*v - (y0 + yn*n + ys*s), {_LOGS}",
            "l",
            "f g h",
        ),
        Form(f"loss = {_quadratic('c')}, {_log10(_LOGS)}"),
        Form(f"loss = {_quadratic('c')} + i1*(1e10/D)^0.5 + i2*(1e8/N)^0.5 + i3*(100/B), {_LOGS}", "i1 i2 i3 c0"),
    ),
    "sparsity": (
        Form("loss = e + exp(d + c*log(P)*log(N))/(P^a*N^b)", above="e"),
        Form("loss = e + k/(P^a*N^b)"),
        Form("loss = e + k/P^a + m*exp(c*log(P)*log(N))/N^b", above="e m"),
        Form("loss = e + k/P^a + m/N^b"),
    ),
    "farseer": (Form("loss = exp(s*N^q + t) + exp(b/N^beta + r)/D^exp(a*N^alpha + e)", "s t b r a e", "alpha q"),),
}
"""Laws by task, as in the names of the tables."""
