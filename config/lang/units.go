package lang

import (
	"fmt"
	"math"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
)

// Size is a number of bytes; in the file an integer or text with a unit: 4096, 64KiB, 1GiB, 500GB.
type Size int64

var units = []struct {
	name  string
	bytes uint64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"TiB", 1 << 40},
	{"PiB", 1 << 50},
	{"KB", 1e3},
	{"kB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"TB", 1e12},
	{"PB", 1e15},
	{"B", 1},
}

const sizeUnits = "KiB, MiB, GiB, TiB (1024) or KB, MB, GB, TB (1000)"

// ParseSize reads a whole number of bytes with an optional unit.
func ParseSize(s string) (Size, error) {
	number, factor := s, uint64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(s, u.name); ok {
			number, factor = strings.TrimSpace(n), u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%q is not a size", s)
	}
	hi, lo := bits.Mul64(n, factor)
	if hi != 0 || lo > math.MaxInt64 {
		return 0, fmt.Errorf("%q is more than 2^63-1 bytes", s)
	}
	return Size(lo), nil
}

var almostSize = regexp.MustCompile(`^([0-9]+) *([KkMmGgTtPp])(i?[Bb])?$`)

// unitHint returns a hint for a size with a misspelt unit; "" if s is not a size.
func unitHint(s string) string {
	m := almostSize.FindStringSubmatch(s)
	if m == nil {
		return ""
	}
	unit := m[1] + strings.ToUpper(m[2])
	return fmt.Sprintf("Write %siB (units of 1024) or %sB (of 1000).", unit, unit)
}

// String formats the size in the unit that makes the shortest text: "64KiB", "500GB", "513B".
func (s Size) String() string {
	best := strconv.FormatInt(int64(s), 10) + "B"
	for _, u := range units {
		if b := Size(u.bytes); s >= b && s%b == 0 {
			if text := strconv.FormatInt(int64(s/b), 10) + u.name; len(text) < len(best) {
				best = text
			}
		}
	}
	return best
}
