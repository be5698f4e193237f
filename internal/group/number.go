package group

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// MaxNumbers is the number of gateways that can have a number.
const MaxNumbers = 64

// numbers is the record of the numbers of gateways, by name.
type numbers struct {
	Format  int            `json:"format"`
	Numbers map[string]int `json:"numbers"`
}

// Number returns the number of a gateway, from 0 to MaxNumbers - 1, in the record of a state. A
// name without a number gets the lowest free one, which is its own from then on.
func Number(ctx context.Context, s State, gateway string) (int, error) {
	for {
		data, version, err := s.Get(ctx)
		if err != nil {
			return 0, err
		}
		n := numbers{Format: 1, Numbers: map[string]int{}}
		if version != 0 {
			if n, err = parseNumbers(data); err != nil {
				return 0, fmt.Errorf("the numbers of gateways cannot be read: %w", err)
			}
		}
		if own, ok := n.Numbers[gateway]; ok {
			return own, nil
		}
		used, own := slices.Sorted(maps.Values(n.Numbers)), 0
		for own < len(used) && used[own] == own {
			own++
		}
		if own == MaxNumbers {
			return 0, fmt.Errorf("%d other names of gateways have a number", MaxNumbers)
		}
		n.Numbers[gateway] = own
		if _, err = s.Put(ctx, n.bytes(), version); err == nil || !errors.Is(err, ErrConflict) {
			return own, err
		}
	}
}

func (n *numbers) bytes() []byte {
	data, _ := json.Marshal(n) // numbers and texts
	return fmt.Appendf(data, "\n%s", checksum(data))
}

// parseNumbers accepts exactly the results of bytes with different numbers.
func parseNumbers(data []byte) (n numbers, err error) {
	text, _, _ := bytes.Cut(data[:min(len(data), MaxRecord)], []byte("\n"))
	if err = json.Unmarshal(text, &n); err != nil {
		return n, err
	}
	if n.Format != 1 {
		return n, fmt.Errorf("their format is %d, and this version knows only 1", n.Format)
	}
	var seen [MaxNumbers]bool
	for _, i := range n.Numbers {
		if i < 0 || i >= MaxNumbers || seen[i] {
			return n, fmt.Errorf("%d is not possible, or appears twice", i)
		}
		seen[i] = true
	}
	if n.Numbers == nil || !bytes.Equal(n.bytes(), data) {
		return n, errors.New("their checksum or their form is wrong")
	}
	return n, nil
}
