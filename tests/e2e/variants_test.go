package e2e

import "testing"

type testBody func(t *testing.T, h *Env, v Variant)

// eachVariant runs fn on a harness for each variant. change alters the options.
func eachVariant(t *testing.T, change func(*Options), fn testBody) {
	runVariants(t, Variants, change, fn)
}

// eachTransport is eachVariant with one variant per transport.
func eachTransport(t *testing.T, change func(*Options), fn testBody) {
	runVariants(t, Plain, change, fn)
}

func runVariants(t *testing.T, list []Variant, change func(*Options), fn testBody) {
	for _, v := range list {
		t.Run(v.Name, func(t *testing.T) {
			if v.TCP.PSK != nil {
				NeedTLS(t)
			}
			o := v.Options
			if change != nil {
				change(&o)
			}
			fn(t, New(t, o), v)
		})
	}
}
