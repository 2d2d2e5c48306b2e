package tracker

import (
	"errors"
	"fmt"

	"github.com/pullgate/pullgate/internal/records"
)

var (
	// ErrNoIntent is returned by [Tracker.BeginPull] when the intent cannot be written. The caller must then not pull.
	ErrNoIntent = errors.New("tracker: pull intent not written")
	// ErrInUse is returned by [Open] if another process has the store open.
	ErrInUse = records.ErrInUse
	// ErrNewerFormat is returned by [Open] for a store of a newer version. It is not changed.
	ErrNewerFormat = records.ErrNewerFormat
	// ErrNothingSelected is returned for a correction that selects nothing. An empty selection never selects everything.
	ErrNothingSelected = errors.New("tracker: nothing is selected")
	// ErrNotPresent is returned by [Tracker.AcceptMarks] if none of the selected images is on the node.
	ErrNotPresent = errors.New("tracker: nothing that is selected is on the node")
	// ErrRivals is returned by [Tracker.AcceptMarks] for a selection by repository only, if one of its images needs proof
	// under another repository, or has another repository in a distrusted store (docs/design/0009).
	ErrRivals = errors.New("tracker: the image also has the name of another repository, " +
		"whose tenant may have given it this one")
	// ErrProved is returned by [Tracker.AcceptMarks] for a pair to which a credential proved access.
	ErrProved = errors.New("tracker: credentials proved access to the image, " +
		"and accepting it opens it to pods that did not")
	// ErrChanged is returned by [Tracker.AcceptMarks] if the selection differs from the result of a dry run.
	ErrChanged = errors.New("tracker: the selected images or their proofs have changed since they were shown; " +
		"nothing was marked")
	// ErrDistrusted is returned by [Tracker.AcceptMarks] for all images of a distrusted store.
	ErrDistrusted = errors.New("tracker: the store is distrusted")
	// ErrTrusted is returned by [Tracker.EndDistrust] for a store that is not distrusted.
	ErrTrusted = errors.New("tracker: the store is not distrusted")
	// ErrBusy is returned by [Tracker.AcceptMarks] for all images during a removal or a create. Pulls do not cause it.
	ErrBusy = errors.New("tracker: an image is being removed or a container is being created; " +
		"try again when that has ended")
	// ErrRuntime is returned if the runtime does not return a required image list: for a correction, and by
	// [Tracker.BeginPull] for a repository that has preloaded marks.
	ErrRuntime = errors.New("tracker: the runtime cannot be asked")
	// ErrStore is returned for a correction that cannot be written.
	ErrStore = errors.New("tracker: the store of pull records cannot be written")
)

var (
	errRevokedSince = errors.New("tracker: what allowed the container may have been revoked since it was created")
	errByFile       = errors.New("tracker: the container may have been allowed by a file, and does not show its name")
)

func unwritten(err error) error { return fmt.Errorf("%w: %w", ErrStore, err) }
