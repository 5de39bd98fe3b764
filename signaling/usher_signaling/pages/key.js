// The API key of this tab. Both pages use it; closing the tab forgets it.

const SLOT = "usher-api-key";

export const storedKey = () => sessionStorage.getItem(SLOT) ?? "";

/** Takes the key out of the form's input. */
export function keepKey(input) {
  sessionStorage.setItem(SLOT, input.value.trim());
  input.value = "";
}

export const forgetKey = () => sessionStorage.removeItem(SLOT);
