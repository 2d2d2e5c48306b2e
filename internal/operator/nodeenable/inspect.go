package nodeenable

import (
	"context"
	"fmt"
	"slices"

	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// An inspection is the state of a node before planning.
type inspection struct {
	node doctor.Kubelet // the current state
	// base is the node as it would be without the files and lines that this package wrote.
	base    doctor.Kubelet
	host    doctor.Host // reads base
	journal *journal    // nil if there is none
	// files are the unchanged files that this package wrote; modifiedByOthers are the changed ones.
	files            []kept
	modifiedByOthers []string
	// unknownReason is why node and base are unknown, except for the name of the unit, which the journal has. Without a
	// journal it is an error.
	unknownReason error
}

// kept is a file that this package wrote or changed.
type kept struct {
	path   string
	before []byte // nil: the file did not exist
}

// inspect reads the state of the node.
func (s Enabler) inspect(ctx context.Context) (inspection, error) {
	j, err := readJournal(s.Host)
	if err != nil {
		return inspection{}, err
	}
	unit := s.Unit
	if unit == "" && j != nil {
		unit = j.Unit
	}
	l := inspection{journal: j}
	if l.node, l.unknownReason = s.Host.Discover(ctx, unit); l.unknownReason != nil {
		if j == nil {
			return inspection{}, l.unknownReason
		}
		l.node = doctor.Kubelet{Unit: doctor.Unit{Name: unit}}
	}
	if err := l.own(s.Host); err != nil {
		return inspection{}, err
	}
	without := map[string][]byte{}
	for _, f := range l.files {
		without[f.path] = f.before
	}
	l.host = s.Host.With(without)
	if l.unknownReason == nil {
		l.base, err = l.host.Discover(ctx, unit)
	}
	return l, err
}

// own finds the files that this package wrote, by the journal or, without it, by their names and first lines.
func (l *inspection) own(h doctor.Host) error {
	candidates := ownFiles(l.node)
	if l.journal != nil && len(l.journal.File.Lines) > 0 {
		if err := l.ownLines(h, l.journal.File); err != nil {
			return err
		}
	} else if l.journal != nil && !slices.Contains(candidates, l.journal.File.Path) {
		candidates = append(candidates, l.journal.File.Path)
	}
	for _, file := range candidates {
		owner, err := ownerOf(h, file)
		if err != nil {
			return fmt.Errorf("find the owner of %s: %w", file, err)
		}
		switch owner {
		case absent, ofOthers:
		case oursModified:
			l.modifiedByOthers = append(l.modifiedByOthers, file)
		case ours:
			l.files = append(l.files, kept{path: file})
		}
	}
	return nil
}

// ownLines finds the lines that this package put into a file of another owner.
func (l *inspection) ownLines(h doctor.Host, f noted) error {
	content, err := h.ReadFile(f.Path)
	if err != nil {
		return fmt.Errorf("read the files of the journal: %w", err)
	}
	before, ok := undo(content, f.Lines)
	switch {
	case !ok:
		l.modifiedByOthers = append(l.modifiedByOthers, f.Path)
	case string(before) != string(content):
		l.files = append(l.files, kept{path: f.Path, before: before})
	}
	return nil
}

// listen is the endpoint that the kubelet dials, or dialled, for pullgated.
func (s Enabler) listen(l inspection) string {
	if l.journal != nil {
		return l.journal.Endpoint
	}
	return s.Daemon.Listen
}

// byHand returns the hint for a file of another owner, which this package does not change.
func byHand(l inspection) string {
	restart := "systemctl restart " + l.node.Unit.Name
	if len(l.modifiedByOthers) > 0 {
		was := ""
		if l.journal != nil && l.journal.Runtime != "" {
			was = "; the kubelet dialled " + l.journal.Runtime + " before"
		}
		return fmt.Sprintf("remove pullgated's endpoint from %s by hand, or remove the file if it contains nothing else, then systemctl daemon-reload and %s%s", l.modifiedByOthers[0], restart, was)
	}
	return fmt.Sprintf("remove pullgated's endpoint from %s by hand, then systemctl daemon-reload and %s", l.node.Dials().Runtime.From, restart)
}
