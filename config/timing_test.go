package config

import (
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestTokenTiming: the time of a comparison does not tell where a token differs.
func TestTokenTiming(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", 4)
	token := newToken(text)
	others := [2]string{"x" + text[1:], text[:len(text)-1] + "x"}
	testutil.MustTrue(t, token.Is(text), "the right token is refused")
	testutil.SameTime(t, 100_000, func(class int) func() {
		return func() {
			for range 10 {
				testutil.True(t, !token.Is(others[class]), "a wrong token is taken")
			}
		}
	})
}
