package config

import (
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testutil"
)

// TestTokenTiming: how long it takes to compare a token does not tell where it differs.
func TestTokenTiming(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", 4)
	token := newToken(text)
	others := [2]string{"x" + text[1:], text[:len(text)-1] + "x"}
	if !token.Is(text) {
		t.Fatal("the right token is refused")
	}
	testutil.SameTime(t, 100_000, func(class int) func() {
		return func() {
			for range 10 {
				if token.Is(others[class]) {
					t.Error("a wrong token is taken")
				}
			}
		}
	})
}
