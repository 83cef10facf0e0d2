// Functions of 16 lanes at once, in polynomials of our own, so that every path and every C library gives the same bits.
// Always inline: where 16 lanes are several registers, a call would pass them through memory.
#pragma once

namespace {

// e^x for x <= 0 (up to 88 it is right as well): relative error below 2e-7; 0 below -87.
template <class L>
[[gnu::always_inline]] inline typename L::F exponential(typename L::F x) {
  using F = typename L::F;
  const F low = L::set(-87.0f);
  const F inside = L::max(x, low);
  const F n = L::round(L::mul(inside, L::set(1.44269504f)));
  F r = L::fma(n, L::set(-0.693359375f), inside);  // x - n ln 2, ln 2 in two parts
  r = L::fma(n, L::set(2.12194440e-4f), r);
  F p = L::set(1.9875691500e-4f);
  p = L::fma(p, r, L::set(1.3981999507e-3f));
  p = L::fma(p, r, L::set(8.3334519073e-3f));
  p = L::fma(p, r, L::set(4.1665795894e-2f));
  p = L::fma(p, r, L::set(1.6666665459e-1f));
  p = L::fma(p, r, L::set(5.0000001201e-1f));
  p = L::fma(L::mul(r, r), p, L::add(r, L::set(1.0f)));
  return L::if_less(x, low, L::set(0.0f), L::mul(p, L::power_of_2(n)));
}

template <class L>
[[gnu::always_inline]] inline typename L::F relu(typename L::F x) {
  return L::max(x, L::set(0.0f));
}

// x / (1 + e^-x), with the exponential of -|x| alone: e / (1 + e) for negative x.
template <class L>
[[gnu::always_inline]] inline typename L::F silu(typename L::F x) {
  using F = typename L::F;
  const F zero = L::set(0.0f), one = L::set(1.0f);
  const F e = exponential<L>(L::sub(zero, L::abs(x)));
  return L::div(L::mul(x, L::if_less(x, zero, e, one)), L::add(one, e));
}

// x * (1 + erf(x / sqrt 2)) / 2. With a = |x|: erfc(a / sqrt 2) / 2 = e^(-a^2 / 2) * P(1 / (1 + 0.23 a)), P fitted to a
// relative error of 5e-8.
template <class L>
[[gnu::always_inline]] inline typename L::F gelu(typename L::F x) {
  using F = typename L::F;
  const F zero = L::set(0.0f), one = L::set(1.0f), a = L::abs(x);
  const F t = L::div(one, L::fma(a, L::set(0.23f), one));
  F p = L::set(-0.0783759728f);
  p = L::fma(p, t, L::set(0.289944977f));
  p = L::fma(p, t, L::set(-0.277098358f));
  p = L::fma(p, t, L::set(0.300215662f));
  p = L::fma(p, t, L::set(-0.031985037f));
  p = L::fma(p, t, L::set(0.119081207f));
  p = L::fma(p, t, L::set(0.0858844668f));
  p = L::fma(p, t, L::set(0.0923595503f));
  p = L::fma(p, t, L::set(-2.65166691e-05f));
  const F tail = L::mul(exponential<L>(L::mul(L::mul(a, a), L::set(-0.5f))), p);
  const F product = L::mul(x, tail);
  return L::if_less(x, zero, product, L::sub(x, product));
}

// gelu in its tanh form: x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^(-2 u)).
template <class L>
[[gnu::always_inline]] inline typename L::F gelu_tanh(typename L::F x) {
  using F = typename L::F;
  const F zero = L::set(0.0f), one = L::set(1.0f);
  const F u = L::mul(L::mul(x, L::set(1.59576912f)), L::fma(L::mul(x, x), L::set(0.044715f), one));  // 2 u
  const F e = exponential<L>(L::sub(zero, L::abs(u)));
  return L::div(L::mul(x, L::if_less(u, zero, e, one)), L::add(one, e));
}

}  // namespace
