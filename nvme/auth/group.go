package auth

import (
	"crypto/rand"
	"errors"
	"math/big"
	"sync"

	"filippo.io/bigmod"
)

// groups has the groups by Group. Each prime is computed from its size and one number (RFC 7919,
// appendix A): p = 2^b - 2^(b-64) + (floor(2^(b-130) e) + x) 2^64 - 1. The generator is 2.
var groups = [...]struct {
	name string
	bits int // b
	// exponent is the size of private exponents in bytes: twice the strength of the group, rounded
	// up (RFC 7919, section 5.2 and appendix A).
	exponent int
	modulus  func() *bigmod.Modulus
}{
	GroupNull: {"null", 0, 0, nil},
	FFDHE2048: {"ffdhe2048", 2048, 32, modulus(2048, 560316)},
	FFDHE3072: {"ffdhe3072", 3072, 40, modulus(3072, 2625351)},
	FFDHE4096: {"ffdhe4096", 4096, 48, modulus(4096, 5736041)},
	FFDHE6144: {"ffdhe6144", 6144, 48, modulus(6144, 15705020)},
	FFDHE8192: {"ffdhe8192", 8192, 56, modulus(8192, 10965728)},
}

// prime returns the prime of a group; it is public.
func prime(b uint, x int64) *big.Int {
	const guard = 64 // more bits of e than are needed
	e, term := new(big.Int), new(big.Int).Lsh(big.NewInt(1), b-130+guard)
	for k := int64(1); term.Sign() > 0; k++ { // 1/0! + 1/1! + 1/2! + ...
		e.Add(e, term)
		term.Quo(term, big.NewInt(k))
	}
	e.Rsh(e, guard)
	one := big.NewInt(1)
	p := new(big.Int).Lsh(one, b)
	p.Sub(p, new(big.Int).Lsh(one, b-64))
	p.Add(p, e.Lsh(e.Add(e, big.NewInt(x)), 64))
	return p.Sub(p, one)
}

// modulus returns a function that makes the modulus of a group when it is first needed.
func modulus(b uint, x int64) func() *bigmod.Modulus {
	return sync.OnceValue(func() *bigmod.Modulus {
		m, err := bigmod.NewModulus(prime(b, x).Bytes())
		if err != nil {
			panic("auth: " + err.Error()) // cannot happen: no input is used
		}
		return m
	})
}

// valueSize is the length of a public value in bytes, 0 for GroupNull.
func (g Group) valueSize() int { return groups[g].bits / 8 }

func (g Group) newExponent() []byte {
	x := make([]byte, groups[g].exponent)
	rand.Read(x) // never fails
	return x
}

// public returns the public value of a private exponent.
func (g Group) public(exponent []byte) []byte {
	m := groups[g].modulus()
	two := make([]byte, m.Size())
	two[len(two)-1] = 2
	base, _ := bigmod.NewNat().SetBytes(two, m)
	return bigmod.NewNat().Exp(base, exponent, m).Bytes(m)
}

var errPublicValue = errors.New("the public value is 0, 1, p-1 or not below p")

// secret returns the common secret: the public value of the other side to the power of the
// exponent, as long as p. The caller wipes it.
func (g Group) secret(exponent, public []byte) ([]byte, error) {
	m := groups[g].modulus()
	y, err := bigmod.NewNat().SetBytes(public, m)
	// Base section 8.3.4.5 and RFC 7919, section 5.1: 0, 1 and p-1 are refused.
	if err != nil || y.IsZero()|y.IsOne()|y.IsMinusOne(m) != 0 {
		return nil, errPublicValue
	}
	return bigmod.NewNat().Exp(y, exponent, m).Bytes(m), nil
}
