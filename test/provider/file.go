package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// file is the resource testing_file: a file on disk. Whoever edits or removes
// the file causes drift.
type file struct{}

var (
	_ resource.ResourceWithImportState    = file{}
	_ resource.ResourceWithValidateConfig = file{}
)

// fileModel is the state of a file.
type fileModel struct {
	Path            types.String `tfsdk:"path"`
	Content         types.String `tfsdk:"content"`
	Secret          types.String `tfsdk:"secret"`
	SecretWO        types.String `tfsdk:"secret_wo"`
	SecretWOVersion types.Int64  `tfsdk:"secret_wo_version"`
	Delay           types.String `tfsdk:"delay"`
	Fail            types.Bool   `tfsdk:"fail"`
	SHA256          types.String `tfsdk:"sha256"`
}

func (file) Metadata(_ context.Context, request resource.MetadataRequest, response *resource.MetadataResponse) {
	response.TypeName = request.ProviderTypeName + "_file"
}

func (file) Schema(_ context.Context, _ resource.SchemaRequest, response *resource.SchemaResponse) {
	response.Schema = schema.Schema{
		Description: "A file. It is read back at each refresh, so changes made by others are drift.",
		Attributes: map[string]schema.Attribute{
			"path": schema.StringAttribute{
				Description:   "Where the file is. Another path is another file. Import by path.",
				Required:      true,
				PlanModifiers: []planmodifier.String{stringplanmodifier.RequiresReplace()},
			},
			"content": schema.StringAttribute{
				Description: "What is in the file.",
				Optional:    true,
			},
			"secret": schema.StringAttribute{
				Description: "A sensitive value: kept in the state, hidden in plans.",
				Optional:    true,
				Sensitive:   true,
			},
			"secret_wo": schema.StringAttribute{
				Description: "A write-only value: written to PATH.secret, in neither plan nor state.",
				Optional:    true,
				Sensitive:   true,
				WriteOnly:   true,
			},
			"secret_wo_version": schema.Int64Attribute{
				Description: "Change it to have secret_wo written again.",
				Optional:    true,
			},
			"delay": schema.StringAttribute{
				Description: "How long writing the file takes, for example 30s. An interrupt ends it.",
				Optional:    true,
			},
			"fail": schema.BoolAttribute{
				Description: "Fail instead of writing the file, after the delay.",
				Optional:    true,
			},
			"sha256": schema.StringAttribute{
				Description: "The digest of the file's content, in hexadecimal.",
				Computed:    true,
			},
		},
	}
}

func (file) ValidateConfig(ctx context.Context, request resource.ValidateConfigRequest, response *resource.ValidateConfigResponse) {
	var delay types.String
	response.Diagnostics.Append(request.Config.GetAttribute(ctx, path.Root("delay"), &delay)...)
	if delay.ValueString() == "" {
		return
	}
	if _, err := time.ParseDuration(delay.ValueString()); err != nil {
		response.Diagnostics.AddAttributeError(path.Root("delay"), "Not a duration", err.Error())
	}
}

func (file) Create(ctx context.Context, request resource.CreateRequest, response *resource.CreateResponse) {
	var plan, config fileModel
	response.Diagnostics.Append(request.Plan.Get(ctx, &plan)...)
	response.Diagnostics.Append(request.Config.Get(ctx, &config)...)
	if write(ctx, &plan, config.SecretWO.ValueString(), &response.Diagnostics) {
		response.Diagnostics.Append(response.State.Set(ctx, &plan)...)
	}
}

func (file) Update(ctx context.Context, request resource.UpdateRequest, response *resource.UpdateResponse) {
	var plan, config fileModel
	response.Diagnostics.Append(request.Plan.Get(ctx, &plan)...)
	response.Diagnostics.Append(request.Config.Get(ctx, &config)...)
	if write(ctx, &plan, config.SecretWO.ValueString(), &response.Diagnostics) {
		response.Diagnostics.Append(response.State.Set(ctx, &plan)...)
	}
}

func (file) Read(ctx context.Context, request resource.ReadRequest, response *resource.ReadResponse) {
	var state fileModel
	response.Diagnostics.Append(request.State.Get(ctx, &state)...)
	if response.Diagnostics.HasError() {
		return
	}
	content, err := os.ReadFile(state.Path.ValueString())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		response.State.RemoveResource(ctx)
		return
	case err != nil:
		response.Diagnostics.AddError("Reading the file failed", err.Error())
		return
	}
	state.SHA256 = digest(content)
	if len(content) > 0 || !state.Content.IsNull() {
		state.Content = types.StringValue(string(content))
	}
	response.Diagnostics.Append(response.State.Set(ctx, &state)...)
}

func (file) Delete(ctx context.Context, request resource.DeleteRequest, response *resource.DeleteResponse) {
	var state fileModel
	response.Diagnostics.Append(request.State.Get(ctx, &state)...)
	if response.Diagnostics.HasError() {
		return
	}
	for _, name := range []string{secretPath(&state), state.Path.ValueString()} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			response.Diagnostics.AddError("Removing the file failed", err.Error())
		}
	}
}

func (file) ImportState(ctx context.Context, request resource.ImportStateRequest, response *resource.ImportStateResponse) {
	resource.ImportStatePassthroughID(ctx, path.Root("path"), request, response)
}

// write writes the file that model describes and sets what is computed. It says
// whether it succeeded, and does nothing after earlier errors.
func write(ctx context.Context, model *fileModel, secretWO string, diagnostics *diag.Diagnostics) bool {
	if diagnostics.HasError() {
		return false
	}
	if err := wait(ctx, model.Delay.ValueString()); err != nil {
		diagnostics.AddError("Interrupted", err.Error())
		return false
	}
	if model.Fail.ValueBool() {
		diagnostics.AddAttributeError(path.Root("fail"), "Asked to fail", "The attribute fail of "+model.Path.ValueString()+" is true.")
		return false
	}
	content := []byte(model.Content.ValueString())
	if err := os.WriteFile(model.Path.ValueString(), content, 0o600); err != nil {
		diagnostics.AddError("Writing the file failed", err.Error())
		return false
	}
	if secretWO != "" {
		if err := os.WriteFile(secretPath(model), []byte(secretWO), 0o600); err != nil {
			diagnostics.AddError("Writing the secret failed", err.Error())
			return false
		}
	}
	model.SHA256 = digest(content)
	return true
}

func wait(ctx context.Context, delay string) error {
	if delay == "" {
		return nil
	}
	duration, err := time.ParseDuration(delay)
	if err != nil {
		return err
	}
	select {
	case <-time.After(duration):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func secretPath(model *fileModel) string { return model.Path.ValueString() + ".secret" }

func digest(content []byte) types.String {
	sum := sha256.Sum256(content)
	return types.StringValue(hex.EncodeToString(sum[:]))
}
