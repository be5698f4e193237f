package nvme

import (
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

func TestAuthCommand(t *testing.T) {
	var s SQE
	s.Auth().Set(FabricsAuthSend, 0x11223344)
	want := SQE{0: 0x7F, 4: 5, 41: 1, 42: 1, 43: 0xE9, 44: 0x44, 45: 0x33, 46: 0x22, 47: 0x11}
	testutil.True(t, s == want && s.Auth().Length() == 0x11223344 && s.Auth().Protocol(), "% x", s)
	for _, i := range []int{41, 42, 43} {
		other := s
		other[i]++
		testutil.True(t, !other.Auth().Protocol(), "byte %d is not looked at", i)
	}
}
