package mem

// Shortage says whether a Waiter has waited since before a time.
func (p *Pool) Shortage(before int64) bool {
	for _, w := range []*Waiter{p.urgent.First(), p.waiting.First()} {
		if w != nil && w.since < before {
			return true
		}
	}
	return false
}
