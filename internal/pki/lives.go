package pki

import (
	"fmt"
	"time"
)

const (
	// CALife is how long a certificate authority is valid unless told otherwise: 90 days.
	CALife = 90 * 24 * time.Hour
	// LeafLife is how long the certificate of either end is valid unless told otherwise: 24 h.
	LeafLife = 24 * time.Hour
	// minLife keeps renewals apart from the backdating and from each other.
	minLife = time.Minute
)

// Lives are how long certificates are valid. Zero means CALife and LeafLife.
type Lives struct {
	// CA is the life of an authority, at least a minute.
	CA time.Duration
	// Leaf is the life of either end's certificate, at least a minute and at most a
	// third of CA: so that what an authority signed just before its rotation does
	// not outlive it.
	Leaf time.Duration
}

// Validate says what is wrong with the lives, nil if nothing is.
func (l Lives) Validate() error {
	all := l.orDefault()
	if all.Leaf < minLife {
		return fmt.Errorf("a certificate's life of %v is less than %v", all.Leaf, minLife)
	}
	if all.Leaf > all.CA/3 {
		return fmt.Errorf("a certificate's life of %v is more than a third of the authority's, which is %v", all.Leaf, all.CA)
	}
	return nil
}

func (l Lives) orDefault() Lives {
	if l.CA == 0 {
		l.CA = CALife
	}
	if l.Leaf == 0 {
		l.Leaf = LeafLife
	}
	return l
}
