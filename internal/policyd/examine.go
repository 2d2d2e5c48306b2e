package policyd

import (
	"errors"
	"fmt"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/pkg/admission/files"
)

// Examine returns why the files that a configuration names cannot be used, all errors at once; nil if they can. It binds no address.
func Examine(c config.Policyd, kinds []files.Kind) error {
	_, err := files.Read(files.Paths{Folder: c.Policies}, kinds)
	if err != nil {
		err = fmt.Errorf("policies:\n%w", err)
	}
	return errors.Join(err, examineHTTPS(c.HTTPS))
}
