package kubelet

import (
	"errors"
	"fmt"
	"sync"
)

// addresses hands out addresses of the loopback network, 127.10.0.1 and up, that
// no other process on this machine was given by this package.
type addresses struct {
	mu   sync.Mutex
	next uint16
}

// take returns an address that is the caller's until release.
func (a *addresses) take() (ip string, release func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for range 1 << 16 {
		// Upwards, so that an address does not come back soon.
		if a.next++; a.next == 0 {
			continue
		}
		ip = fmt.Sprintf("127.10.%d.%d", a.next>>8, a.next&0xff)
		if release, err = claim(ip); err == nil {
			return ip, release, nil
		}
	}
	return "", nil, errors.Join(errors.New("no address is free in 127.10.0.0/16"), err)
}
